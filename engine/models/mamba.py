"""Mamba-1 in the Hugging Face layout: configuration to spec, and where its tensors stand.

The original state-spaces layout is turned into this one first (`original.py`). No torch.
"""

import math

from mambad.engine.models.config_values import ConfigValues
from mambad.engine.models.rules import Rule, Scope, mixer_rules, norm_rule
from mambad.engine.models.spec import LayerSpec, Mamba1Spec, ModelSpec, NormSpec

BACKBONE_PREFIXES = ("backbone.", "model.backbone.")
"""Mistral's files put everything under `model.`."""


def build(config: ConfigValues) -> ModelSpec:
    """Return the spec of a Mamba-1 model.

    Raises:
        LoadError: a value is missing or not supported.
    """
    config.require("hidden_act", ["silu", "swish"], default="silu", why="Mamba models use silu")
    hidden_size = config.integer("hidden_size")
    norm = NormSpec(config.positive("layer_norm_epsilon", 1e-5))
    rank = config.raw("time_step_rank")
    mixer = Mamba1Spec(
        inner_size=int(config.positive("expand", 2) * hidden_size),
        state_size=config.integer("state_size", 16),
        conv_width=config.integer("conv_kernel", 4, minimum=2),
        dt_rank=math.ceil(hidden_size / 16) if rank in (None, "auto") else config.integer("time_step_rank"),
        has_conv_bias=config.flag("use_conv_bias", True),
        has_proj_bias=config.flag("use_bias", False),
    )
    vocab_size = config.integer("vocab_size")
    return ModelSpec(
        family="mamba",
        vocab_size=vocab_size,
        real_vocab_size=vocab_size,
        hidden_size=hidden_size,
        layers=(LayerSpec(norm, mixer),) * config.integer("num_hidden_layers"),
        tied=config.flag("tie_word_embeddings", True),
        final_norm=norm,
    )


def rules(spec: ModelSpec) -> list[Rule]:
    """Return the rules for both layouts of Mamba-1 and of Mamba-2, whose outer names are the same."""
    backbone = Scope("", BACKBONE_PREFIXES)
    table = (spec.vocab_size, spec.hidden_size)
    embedding_names = ("embeddings.weight", "embedding.weight")
    head_names = ("lm_head.weight", "model.lm_head.weight")
    result = [
        Rule(
            "embedding",
            tuple(prefix + name for prefix in BACKBONE_PREFIXES for name in embedding_names),
            table,
            "embedding",
        ),
        Rule("head", head_names, table, "spare" if spec.tied else "linear"),
        norm_rule(backbone, "final_norm", "norm_f", spec.hidden_size),
    ]
    for index, layer in enumerate(spec.layers):
        scope = backbone.inner(f"layers.{index}", f"layers.{index}")
        result.append(norm_rule(scope, "mixer_norm", "norm", spec.hidden_size))
        result.extend(mixer_rules(scope.inner("mixer", "mixer"), spec.hidden_size, layer.mixer))
    return result
