"""Converts a checkpoint of `shapes.py` for llama.cpp: `python to_gguf.py FOLDER F32|BF16 FILE.gguf`.

Runs in the peer's environment (packages gguf and safetensors). Writes what llama.cpp's own converter writes
for these two families: decay as -exp(A_log), the convolution without its middle dimension.
"""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

gguf = importlib.import_module("gguf")  # not a dependency of mambad, so not declared

NAMES = {
    "embeddings.weight": "token_embd.weight", "norm_f.weight": "output_norm.weight",
    "norm.weight": "attn_norm.weight", "mixer.in_proj.weight": "ssm_in.weight",
    "mixer.conv1d.weight": "ssm_conv1d.weight", "mixer.conv1d.bias": "ssm_conv1d.bias",
    "mixer.x_proj.weight": "ssm_x.weight", "mixer.dt_proj.weight": "ssm_dt.weight",
    "mixer.dt_proj.bias": "ssm_dt.bias", "mixer.dt_bias": "ssm_dt.bias", "mixer.A_log": "ssm_a",
    "mixer.D": "ssm_d", "mixer.norm.weight": "ssm_norm.weight", "mixer.out_proj.weight": "ssm_out.weight",
}  # fmt: skip


def convert(folder: Path, kind: str, path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(str(path), config["model_type"])
    add_sizes(writer, config, kind)
    add_tokenizer(writer, folder)
    for name, tensor in load_file(folder / "model.safetensors").items():
        add_tensor(writer, name.removeprefix("backbone."), tensor, config, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_sizes(writer, config: dict, kind: str) -> None:
    inner = config["expand"] * config["hidden_size"]
    is_mamba2 = config["model_type"] == "mamba2"
    writer.add_context_length(1 << 20)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(config["state_size"])
    writer.add_ssm_time_step_rank(config["num_heads"] if is_mamba2 else config["time_step_rank"])
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    if is_mamba2:
        writer.add_ssm_group_count(config["n_groups"])
    else:
        writer.add_ssm_dt_b_c_rms(False)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if kind == "F32" else gguf.LlamaFileType.MOSTLY_BF16)


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


def add_tensor(writer, name: str, tensor: np.ndarray, config: dict, kind: str) -> None:
    prefix = ""
    if name.startswith("layers."):
        _, layer, name = name.split(".", 2)
        prefix = f"blk.{layer}."
    is_mamba2 = config["model_type"] == "mamba2"
    if name == "mixer.A_log":
        tensor = -np.exp(tensor)
    if name == "mixer.conv1d.weight":
        tensor = tensor.squeeze(1)
    if is_mamba2 and name in ("mixer.A_log", "mixer.D"):
        tensor = tensor.reshape(-1, 1)
    if name == "mixer.norm.weight":
        tensor = tensor.reshape(config["n_groups"], -1)
    target = prefix + NAMES[name]
    if kind == "BF16" and name.endswith(("proj.weight", "embeddings.weight")):
        kind_id = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(target, gguf.quants.quantize(tensor, kind_id), raw_dtype=kind_id)
    else:
        writer.add_tensor(target, np.ascontiguousarray(tensor, dtype=np.float32))


if __name__ == "__main__":
    convert(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
