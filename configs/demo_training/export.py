"""Writes a trained model as a Hugging Face checkpoint folder in 16-bit numbers.

Owns config.json, generation_config.json and model.safetensors of the demo model.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from mambad.configs.demo_training.corpus import END_OF_TEXT, END_OF_TURN
from mambad.configs.demo_training.model import DemoModel, ModelConfig


def rounded(model: DemoModel, dtype: torch.dtype) -> DemoModel:
    """A float32 copy of ``model`` whose weights went through ``dtype``: what a reader of the file gets."""
    copy = DemoModel(model.config)
    copy.load_state_dict({name: value.to(dtype) for name, value in model.state_dict().items()})
    return copy


def write_checkpoint(model: DemoModel, tokenizer: Tokenizer, out: Path, dtype: torch.dtype) -> None:
    """Write configuration and weights into the folder ``out``; tied weights are stored once."""
    end_of_text, end_of_turn = (tokenizer.token_to_id(token) for token in (END_OF_TEXT, END_OF_TURN))
    assert end_of_text is not None
    assert end_of_turn is not None
    config = hugging_face_config(model.config, end_of_text, str(dtype).removeprefix("torch."))
    generation = {
        "do_sample": True,
        "temperature": 0.8,
        "eos_token_id": [end_of_text, end_of_turn],
        "pad_token_id": end_of_text,
    }
    _write_json(out / "config.json", config)
    _write_json(out / "generation_config.json", generation)
    weights = {name: value.detach().to(dtype).contiguous() for name, value in model.state_dict().items()}
    path = out / "model.safetensors"
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors creates files that only their owner can read.


def hugging_face_config(config: ModelConfig, eos_token_id: int, dtype: str) -> dict[str, Any]:
    """The fields that GraniteMoeHybridForCausalLM reads; ``time_step_limit`` stays at (0, inf)."""
    sizes = asdict(config)
    return {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "dtype": dtype,
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "pad_token_id": None,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "position_embedding_type": "nope",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "num_hidden_layers": len(config.layer_types),
        "intermediate_size": config.shared_intermediate_size,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "mamba_expand": config.inner_size // config.hidden_size,
        "mamba_n_groups": 1,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        **sizes,
        "layer_types": list(config.layer_types),
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
