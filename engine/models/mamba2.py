"""Mamba-2 in the Hugging Face layout, Codestral Mamba included: configuration to spec.

Its tensors stand where Mamba-1's do (`mamba.rules`). The defaults of Transformers' Mamba2Config are those
of one 7B model, so sizes are always read from the checkpoint and never assumed. No torch.
"""

from mambad.engine.errors import LoadError
from mambad.engine.models.config_values import ConfigValues
from mambad.engine.models.spec import LayerSpec, Mamba2Spec, ModelSpec, NormSpec


def build(config: ConfigValues) -> ModelSpec:
    """Return the spec of a Mamba-2 model.

    `time_step_min`, `time_step_max` and `time_step_floor` belong to initialisation: only `time_step_limit`
    bounds the step size.

    Raises:
        LoadError: a value is missing or not supported.
    """
    config.require("hidden_act", ["silu", "swish"], default="silu", why="Mamba models use silu")
    norm = NormSpec(config.positive("layer_norm_epsilon", 1e-5))
    mixer = Mamba2Spec(
        num_heads=config.integer("num_heads"),
        head_dim=config.integer("head_dim"),
        state_size=config.integer("state_size"),
        num_groups=config.integer("n_groups"),
        conv_width=config.integer("conv_kernel", 4, minimum=2),
        dt_limit=config.limits("time_step_limit"),
        norm_eps=norm.eps,
        has_conv_bias=config.flag("use_conv_bias", True),
        has_proj_bias=config.flag("use_bias", False),
    )
    check_groups(mixer)
    vocab_size = config.integer("vocab_size")
    return ModelSpec(
        family="mamba2",
        vocab_size=vocab_size,
        real_vocab_size=vocab_size,
        hidden_size=config.integer("hidden_size"),
        layers=(LayerSpec(norm, mixer),) * config.integer("num_hidden_layers"),
        tied=config.flag("tie_word_embeddings", False),
        final_norm=norm,
    )


def check_groups(mixer: Mamba2Spec) -> None:
    """Refuse heads that can't be divided among the groups.

    Raises:
        LoadError: the number of heads is no multiple of the number of groups.
    """
    if mixer.num_heads % mixer.num_groups:
        raise LoadError(
            f"config.json: {mixer.num_heads} Mamba-2 heads can't be divided among {mixer.num_groups} groups"
        )
