"""Writes random checkpoints in the shape of mamba-130m and mamba2-130m: `python shapes.py FOLDER [NAME ...]`.

Nobody needs to download weights to compare speed. The tokenizer knows every byte and fills up the vocabulary
with words that mean nothing.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

NAMES = ("mamba-130m", "mamba2-130m")


def make(name: str) -> torch.nn.Module:
    """Return the model with random float32 weights."""
    torch.manual_seed(0)
    if name == "mamba-130m":
        sizes = {"vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 24, "state_size": 16}
        return MambaForCausalLM(MambaConfig(**sizes, eos_token_id=0))
    sizes = {"vocab_size": 50288, "hidden_size": 768, "num_hidden_layers": 24, "state_size": 128}
    heads = {"num_heads": 24, "head_dim": 64, "n_groups": 1, "expand": 2}
    return Mamba2ForCausalLM(Mamba2Config(**sizes, **heads, tie_word_embeddings=True, eos_token_id=0))


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    signs = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    signs += [f"tok{number}" for number in range(len(signs), vocab_size)]
    tokenizer = Tokenizer(models.BPE({sign: number for number, sign in enumerate(signs)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))


def write(root: Path, name: str) -> Path:
    """Write a checkpoint unless it is there; returns its folder."""
    folder = root / name
    if not (folder / "tokenizer_config.json").exists():
        model = make(name)
        model.save_pretrained(folder)
        write_tokenizer(folder, model.config.vocab_size)
    return folder


if __name__ == "__main__":
    for wanted in sys.argv[2:] or NAMES:
        print(write(Path(sys.argv[1]), wanted))
