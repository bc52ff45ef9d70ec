"""Converts a checkpoint of `shapes.py` for llama.cpp: `python to_gguf.py FOLDER F32|BF16 FILE.gguf`.

Runs in the peer's environment (packages gguf and safetensors). Writes what llama.cpp's own converter writes
for these families: decay as -exp(A_log), the convolution without its middle dimension, gate and up apart.
Quantized files are made from the float32 one by `llama-quantize`.
"""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

gguf = importlib.import_module("gguf")  # not a dependency of mambad, so not declared

ARCHITECTURES = {"mamba": "mamba", "mamba2": "mamba2", "granitemoehybrid": "granitehybrid"}
NAMES = {
    "embeddings.weight": "token_embd.weight", "norm_f.weight": "output_norm.weight",
    "norm.weight": "attn_norm.weight", "mixer.in_proj.weight": "ssm_in.weight",
    "mixer.conv1d.weight": "ssm_conv1d.weight", "mixer.conv1d.bias": "ssm_conv1d.bias",
    "mixer.x_proj.weight": "ssm_x.weight", "mixer.dt_proj.weight": "ssm_dt.weight",
    "mixer.dt_proj.bias": "ssm_dt.bias", "mixer.dt_bias": "ssm_dt.bias", "mixer.A_log": "ssm_a",
    "mixer.D": "ssm_d", "mixer.norm.weight": "ssm_norm.weight", "mixer.out_proj.weight": "ssm_out.weight",
    # Granite hybrids; what the mixer holds is called as above.
    "embed_tokens.weight": "token_embd.weight", "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight", "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight", "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight", "gate.weight": "ffn_gate.weight",
    "up.weight": "ffn_up.weight", "shared_mlp.output_linear.weight": "ffn_down.weight",
}  # fmt: skip
MATRICES = (
    "proj.weight",
    "embeddings.weight",
    "embed_tokens.weight",
    "linear.weight",
    "gate.weight",
    "up.weight",
)


def convert(folder: Path, kind: str, path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(str(path), ARCHITECTURES[config["model_type"]])
    if config["model_type"] == "granitemoehybrid":
        add_hybrid_sizes(writer, config)
    else:
        add_sizes(writer, config)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if kind == "F32" else gguf.LlamaFileType.MOSTLY_BF16)
    add_tokenizer(writer, folder)
    for name, tensor in load_file(folder / "model.safetensors").items():
        for part, value in split(name.removeprefix("backbone.").removeprefix("model."), tensor):
            add_tensor(writer, part, value, config, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_sizes(writer, config: dict) -> None:
    is_mamba2 = config["model_type"] == "mamba2"
    writer.add_context_length(1 << 20)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_inner_size(config["expand"] * config["hidden_size"])
    writer.add_ssm_state_size(config["state_size"])
    writer.add_ssm_time_step_rank(config["num_heads"] if is_mamba2 else config["time_step_rank"])
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    if is_mamba2:
        writer.add_ssm_group_count(config["n_groups"])
    else:
        writer.add_ssm_dt_b_c_rms(False)


def add_hybrid_sizes(writer, config: dict) -> None:
    kv_heads = config["num_key_value_heads"]
    writer.add_context_length(1 << 20)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["shared_intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv([kv_heads if word == "attention" else 0 for word in config["layer_types"]])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_scaling_finetuned(False)  # this is how the family says that it has no positions
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_inner_size(config["mamba_expand"] * config["hidden_size"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])
    writer.add_ssm_group_count(config["mamba_n_groups"])


def add_tokenizer(writer, folder: Path) -> None:
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    num_tokens = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokens = [f"unused{number}" for number in range(num_tokens)]
    for sign, number in vocab.items():
        tokens[number] = sign
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (num_tokens - 1))
    writer.add_token_merges([f"{tokens[1]} {tokens[2]}"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)


def split(name: str, tensor: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield a tensor under the name that all families share, and gate and up one by one."""
    if name.endswith("shared_mlp.input_linear.weight"):
        prefix = name.removesuffix("shared_mlp.input_linear.weight")
        yield from zip((prefix + "gate.weight", prefix + "up.weight"), np.split(tensor, 2), strict=True)
    elif name == "norm.weight":
        yield "norm_f.weight", tensor
    else:
        yield name.replace(".mamba.", ".mixer."), tensor


def add_tensor(writer, name: str, tensor: np.ndarray, config: dict, kind: str) -> None:
    prefix = ""
    if name.startswith("layers."):
        _, layer, name = name.split(".", 2)
        prefix = f"blk.{layer}."
    if name == "mixer.A_log":
        tensor = -np.exp(tensor)
    if name == "mixer.conv1d.weight":
        tensor = tensor.squeeze(1)
    if config["model_type"] != "mamba" and name in ("mixer.A_log", "mixer.D"):
        tensor = tensor.reshape(-1, 1)
    if name == "mixer.norm.weight":
        tensor = tensor.reshape(config.get("n_groups", 1), -1)
    target = prefix + NAMES[name]
    if kind == "BF16" and name.endswith(MATRICES):
        kind_id = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(target, gguf.quants.quantize(tensor, kind_id), raw_dtype=kind_id)
    else:
        writer.add_tensor(target, np.ascontiguousarray(tensor, dtype=np.float32))


if __name__ == "__main__":
    convert(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
