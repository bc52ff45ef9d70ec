"""Tiny random checkpoints of every family, written with Transformers, and Transformers' own logits for them.

Every parameter is random, those included that initialise to constants and so hide errors of grouping,
packing and clamping. The oracle is always one forward pass over whole prompts: the cached paths of
Transformers are wrong for some of these models. Folders last as long as the process.
"""

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from transformers import (
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)
from transformers.utils import logging as transformers_logging

NUM_TOKENS = 130
"""Tokens of each oracle prompt: two whole chunks and two tokens."""


@dataclass(frozen=True, slots=True)
class ToyModel:
    """A checkpoint and what Transformers computes from it.

    Attributes:
        folder: the checkpoint.
        token_ids: (2, NUM_TOKENS) int64 — two prompts.
        logits: (2, NUM_TOKENS, real vocab) float32.
    """

    folder: Path
    token_ids: Tensor
    logits: Tensor


Rewrite = Callable[[Path], None]
"""Changes a saved checkpoint in place."""


def toy_names() -> list[str]:
    """Names that `toy_model` knows."""
    return list(_recipes())


@functools.cache
def toy_model(name: str) -> ToyModel:
    """Write a toy checkpoint and compute its logits, once a process."""
    model, rewrite = _recipes()[name]()
    folder = _root() / name
    model.save_pretrained(folder)
    if rewrite is not None:
        rewrite(folder)
    num_tokens = json.loads((folder / "config.json").read_text())["vocab_size"]
    generator = torch.Generator().manual_seed(5)
    token_ids = torch.randint(num_tokens, (2, NUM_TOKENS), generator=generator)
    with torch.no_grad():
        # From here on in float32, of whatever precision the saved weights are.
        logits = model.float()(token_ids, use_cache=False).logits[..., :num_tokens]
    return ToyModel(folder, token_ids, logits)


def copy_of(name: str, folder: Path) -> Path:
    """Copy a toy checkpoint to a folder that the test may change."""
    return Path(shutil.copytree(toy_model(name).folder, folder))


def random_mamba(**changes: Any) -> Any:
    """Return a random Mamba in Transformers, as the toy but for these keys of its configuration."""
    return _mamba(**changes)


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes a key."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


@functools.cache
def _root() -> Path:
    quiet: Any = transformers_logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    return Path(_folder().name)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="mambad-toys-")


def _recipes() -> dict[str, Callable[[], tuple[Any, Rewrite | None]]]:
    return {
        "mamba": lambda: (_mamba(), None),
        "mamba-biases": lambda: (
            _mamba(use_bias=True, use_conv_bias=False, tie_word_embeddings=False, conv_kernel=3),
            None,
        ),
        "mamba-original": lambda: (_mamba(vocab_size=96, layer_norm_epsilon=1e-5), _to_original_mamba),
        "mamba2": lambda: (_mamba2(), None),
        "mamba2-groups": lambda: (_mamba2(n_groups=2, use_bias=True, tie_word_embeddings=False), None),
        "mamba2-limits": lambda: (_mamba2(n_groups=2, time_step_limit=(0.05, 0.2)), None),
        "mamba2-original": lambda: (
            _mamba2(vocab_size=96, layer_norm_epsilon=1e-5, dtype=torch.float16),
            _to_original_mamba2,
        ),
        "mamba2-mistral": lambda: (_mamba2(n_groups=8, tie_word_embeddings=False), _to_mistral),
        "mamba2-bfloat16": lambda: (_mamba2(n_groups=2, dtype=torch.bfloat16), None),
        "granite": lambda: (_granite(["mamba", "attention", "mamba"]), _to_old_words),
        "granite-attention": lambda: (_granite(["attention"] * 2, attention_bias=True), None),
        "granite-mamba": lambda: (_granite(["mamba"] * 2, mamba_n_groups=2), None),
    }


def _mamba(**changes: Any) -> Any:
    sizes: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 24,
        "state_size": 6,
        "num_hidden_layers": 3,
        "time_step_rank": 3,
        "layer_norm_epsilon": 3e-2,
    }
    return _randomise(MambaForCausalLM(MambaConfig(**(sizes | changes))))


def _mamba2(dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    sizes: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 32,
        "state_size": 16,
        "num_hidden_layers": 3,
        "num_heads": 8,
        "head_dim": 8,
        "n_groups": 1,
        "chunk_size": 16,
        "layer_norm_epsilon": 3e-2,
        "tie_word_embeddings": True,
    }
    return _randomise(Mamba2ForCausalLM(Mamba2Config(**(sizes | changes)))).to(dtype)


def _granite(layer_types: list[str], **changes: Any) -> Any:
    sizes: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 32,
        "num_hidden_layers": len(layer_types),
        "layer_types": layer_types,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 40,
        "rms_norm_eps": 3e-2,
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_state": 16,
        "mamba_chunk_size": 16,
        "embedding_multiplier": 1.5,
        "residual_multiplier": 0.7,
        "attention_multiplier": 0.6,
        "logits_scaling": 1.3,
        "tie_word_embeddings": True,
    }
    return _randomise(GraniteMoeHybridForCausalLM(GraniteMoeHybridConfig(**(sizes | changes))))


def _randomise(model: Any) -> Any:
    generator = torch.Generator().manual_seed(11)

    def uniform(parameter: Tensor, low: float, high: float) -> None:
        parameter.copy_(low + (high - low) * torch.rand(parameter.shape, generator=generator))

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("dt_bias", "dt_proj.bias")):
                uniform(parameter, -8.0, 0.5)
            elif name.endswith("A_log"):
                uniform(parameter, -1.0, 2.0)
            elif "norm" in name or name.endswith(".D"):
                uniform(parameter, 0.5, 1.5)
            elif parameter.dim() == 1:
                uniform(parameter, -0.3, 0.3)
            else:
                bound = (3 / parameter.shape[-1]) ** 0.5
                uniform(parameter, -bound, bound)
    return model.eval()


def _to_original(folder: Path, config: dict[str, Any]) -> None:
    """Rewrite a saved model in the layout of the state-spaces checkpoints, with padded vocabulary."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    embedding = tensors.pop("backbone.embeddings.weight")
    tensors |= {"backbone.embedding.weight": embedding, "lm_head.weight": embedding}
    torch.save(tensors, folder / "pytorch_model.bin")
    for name in ("model.safetensors", "generation_config.json"):
        (folder / name).unlink()
    (folder / "config.json").write_text(json.dumps(config))


def _to_original_mamba(folder: Path) -> None:
    ssm_cfg = {"d_state": 6, "dt_rank": 3}
    common = {"d_model": 24, "n_layer": 3, "vocab_size": 93, "pad_vocab_size_multiple": 8}
    _to_original(folder, {**common, "ssm_cfg": ssm_cfg, "rms_norm": True, "residual_in_fp32": True})


def _to_original_mamba2(folder: Path) -> None:
    ssm_cfg = {"layer": "Mamba2", "d_state": 16, "headdim": 8}
    common = {"d_model": 32, "n_layer": 3, "vocab_size": 93, "pad_vocab_size_multiple": 16}
    _to_original(folder, {**common, "ssm_cfg": ssm_cfg, "attn_layer_idx": [], "d_intermediate": 0})


def _to_mistral(folder: Path) -> None:
    """Rename tensors as in Mistral's file of Codestral Mamba, and leave out what its config may lack."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = {f"model.{name}": tensor.clone() for name, tensor in load_file(path).items()}
    path.unlink()
    save_file(tensors, folder / "consolidated.safetensors")
    edit_json(folder / "config.json", architectures=None)


def _to_old_words(folder: Path) -> None:
    """Write the layer list in the words of Transformers 4."""
    edit_json(
        folder / "config.json",
        layer_types=["mamba", "attention", "mamba"],
        position_embedding_type="nope",
        time_step_limit=[0.0, float("inf")],
    )
