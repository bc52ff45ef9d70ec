"""The original layout of the state-spaces checkpoints, turned into the Hugging Face layout's words.

Their config.json has `d_model`, `n_layer` and `ssm_cfg`, and neither `architectures` nor `model_type`.
Owns that translation. Tensor names differ by one letter and are covered by the families' rules. No torch.
"""

from collections.abc import Mapping
from typing import Any

from mambad.engine.errors import LoadError
from mambad.engine.models.config_values import ConfigValues

GPT_NEOX_VOCAB_SIZE = 50277
"""The state-spaces models use the tokenizer of gpt-neox-20b without shipping it; its end of text is 0."""

_INITIALISATION_KEYS = frozenset(
    {
        *("A_init_range", "dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "conv_init"),
        *("chunk_size", "use_fast_path", "use_mem_eff_path"),
    }
)
"""Keys that say how weights were made or how training computes, not what the model is."""
_MAMBA1_KEYS = frozenset(["layer", "d_state", "d_conv", "expand", "dt_rank", "conv_bias", "bias"])
_MAMBA2_KEYS = (_MAMBA1_KEYS - {"dt_rank"}) | frozenset(
    ["headdim", "ngroups", "dt_limit", "d_ssm", "D_has_hdim", "rmsnorm", "norm_before_gate"]
)


def is_original_layout(config: ConfigValues) -> bool:
    """Whether a configuration speaks the original layout's words and not also Hugging Face's."""
    return "d_model" in config and "n_layer" in config and "hidden_size" not in config


def to_hugging_face(config: ConfigValues) -> dict[str, Any]:
    """Return the same model in the words of the `mamba` or `mamba2` family, with padded vocab_size.

    Raises:
        LoadError: a value is missing or asks for a variant that no family implements.
    """
    config.require("rms_norm", [True], default=True, why="only RMS norms are implemented")
    config.require(
        "attn_layer_idx", [None, []], default=None, why="attention layers are not implemented here"
    )
    config.require("d_intermediate", [0], default=0, why="mlp layers are not implemented here")
    ssm_cfg = config.raw("ssm_cfg") or {}
    if not isinstance(ssm_cfg, Mapping):
        raise LoadError(f"config.json: ssm_cfg is {ssm_cfg!r}, expected an object")
    layer = ssm_cfg.get("layer", "Mamba1")
    if layer not in ("Mamba1", "Mamba2"):
        raise LoadError(f"config.json: ssm_cfg.layer={layer!r} is not supported; supported: Mamba1, Mamba2")
    known = _INITIALISATION_KEYS | (_MAMBA1_KEYS if layer == "Mamba1" else _MAMBA2_KEYS)
    unknown = sorted(set(ssm_cfg) - known)
    if unknown:
        raise LoadError(f"config.json: ssm_cfg holds keys that are not supported: {', '.join(unknown)}")
    ssm = ConfigValues(ssm_cfg)
    multiple = config.integer("pad_vocab_size_multiple", 8)
    hidden_size = config.integer("d_model")
    common = {
        "hidden_size": hidden_size,
        "num_hidden_layers": config.integer("n_layer"),
        "vocab_size": -(-config.integer("vocab_size") // multiple) * multiple,
        "tie_word_embeddings": config.flag("tie_embeddings", True),
        "expand": ssm.positive("expand", 2),
        "conv_kernel": ssm.integer("d_conv", 4),
        "use_conv_bias": ssm.flag("conv_bias", True),
        "use_bias": ssm.flag("bias", False),
        "eos_token_id": 0 if config.raw("vocab_size") == GPT_NEOX_VOCAB_SIZE else None,
    }
    if layer == "Mamba1":
        specific = {"state_size": ssm.integer("d_state", 16), "time_step_rank": ssm.raw("dt_rank")}
        return {"model_type": "mamba", **common, **specific}
    return {"model_type": "mamba2", **common, **_mamba2_values(ssm, hidden_size)}


def _mamba2_values(ssm: ConfigValues, hidden_size: int) -> dict[str, Any]:
    inner_size = int(ssm.positive("expand", 2) * hidden_size)
    head_dim = ssm.integer("headdim", 64)
    if inner_size % head_dim:
        raise LoadError(
            f"config.json: {inner_size} inner channels are no multiple of ssm_cfg.headdim={head_dim}"
        )
    ssm.require("d_ssm", [None, inner_size], default=None, why="an mlp beside the ssm is not implemented")
    ssm.require("D_has_hdim", [False], default=False, why="D is expected to have one value a head")
    ssm.require("rmsnorm", [True], default=True, why="only the gated norm is implemented")
    ssm.require("norm_before_gate", [False], default=False, why="the gate is applied before the norm")
    return {
        "state_size": ssm.integer("d_state", 128),
        "head_dim": head_dim,
        "num_heads": inner_size // head_dim,
        "n_groups": ssm.integer("ngroups", 1),
        "time_step_limit": ssm.raw("dt_limit"),
    }
