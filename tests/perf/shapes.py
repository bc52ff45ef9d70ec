"""Writes random checkpoints in the shapes of published models: `python shapes.py FOLDER [NAME ...]`.

Nobody needs to download weights to compare speed. The tokenizer knows every byte and fills up the vocabulary
with words that mean nothing.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

NAMES = ("mamba-130m", "mamba2-130m", "mamba2-370m", "granite-hybrid-350m")
GRANITE_ATTENTION_LAYERS = (10, 13, 17, 27)


def make(name: str) -> torch.nn.Module:
    """Return the model with random float32 weights."""
    torch.manual_seed(0)
    if name == "mamba-130m":
        sizes = {"vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 24, "state_size": 16}
        return MambaForCausalLM(MambaConfig(**sizes, eos_token_id=0))
    if name == "granite-hybrid-350m":
        return GraniteMoeHybridForCausalLM(granite_config())
    hidden_size, num_layers = {"mamba2-130m": (768, 24), "mamba2-370m": (1024, 48)}[name]
    sizes = {"vocab_size": 50288, "hidden_size": hidden_size, "num_hidden_layers": num_layers}
    heads = {"num_heads": hidden_size // 32, "head_dim": 64, "n_groups": 1, "expand": 2, "state_size": 128}
    return Mamba2ForCausalLM(Mamba2Config(**sizes, **heads, tie_word_embeddings=True, eos_token_id=0))


def granite_config() -> GraniteMoeHybridConfig:
    """Return the sizes and multipliers of granite-4.0-h-350m."""
    num_layers = 32
    return GraniteMoeHybridConfig(
        vocab_size=100352, hidden_size=768, num_hidden_layers=num_layers, shared_intermediate_size=2048,
        intermediate_size=2048, num_attention_heads=12, num_key_value_heads=4, num_local_experts=0,
        num_experts_per_tok=0, position_embedding_type="nope", tie_word_embeddings=True, rms_norm_eps=1e-5,
        mamba_n_heads=48, mamba_d_head=32, mamba_d_state=128, mamba_n_groups=1, mamba_expand=2,
        mamba_d_conv=4, max_position_embeddings=32768, attention_multiplier=0.015625,
        embedding_multiplier=12.0, residual_multiplier=0.246, logits_scaling=3.0,
        bos_token_id=0, eos_token_id=0, pad_token_id=0,
        layer_types=[
            "attention" if layer in GRANITE_ATTENTION_LAYERS else "mamba" for layer in range(num_layers)
        ],
    )  # fmt: skip


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    signs = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    signs += [f"tok{number}" for number in range(len(signs), vocab_size)]
    tokenizer = Tokenizer(models.BPE({sign: number for number, sign in enumerate(signs)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write(root: Path, name: str) -> Path:
    """Write a checkpoint unless it is there; returns its folder."""
    folder = root / name
    if not (folder / "tokenizer_config.json").exists():
        model = make(name)
        model.save_pretrained(folder)
        write_layer_types(folder)
        write_tokenizer(folder, model.config.vocab_size)
    return folder


def write_layer_types(folder: Path) -> None:
    """Name a hybrid's layers as published checkpoints do; every system knows these words."""
    config = json.loads((folder / "config.json").read_text())
    if "layer_types" in config:
        words = {"linear_attention": "mamba", "full_attention": "attention"}
        config["layer_types"] = [words.get(word, word) for word in config["layer_types"]]
        (folder / "config.json").write_text(json.dumps(config, indent=2))


if __name__ == "__main__":
    for wanted in sys.argv[2:] or NAMES:
        print(write(Path(sys.argv[1]), wanted))
