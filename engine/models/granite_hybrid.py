"""Granite 4.0-H without experts (GraniteMoeHybridForCausalLM): configuration to spec, tensors' places.

Layers are Mamba-2 or attention without positional encoding, each followed by a shared mlp; four scalar
multipliers. Layer lists of one kind only work as well. Experts and rotary positions are refused. No torch.
"""

from mambad.engine.errors import LoadError
from mambad.engine.models.config_values import ConfigValues
from mambad.engine.models.mamba2 import check_groups
from mambad.engine.models.rules import Rule, Scope, mixer_rules, norm_rule
from mambad.engine.models.spec import AttentionSpec, LayerSpec, Mamba2Spec, MlpSpec, ModelSpec, NormSpec

LINEAR_WORDS = frozenset({"mamba", "linear_attention"})
ATTENTION_WORDS = frozenset({"attention", "full_attention"})


def build(config: ConfigValues) -> ModelSpec:
    """Return the spec of a Granite hybrid model.

    Raises:
        LoadError: a value is missing or not supported.
    """
    config.require("hidden_act", ["silu", "swish"], default="silu", why="Granite models use silu")
    if config.integer("num_local_experts", minimum=0):
        raise LoadError(
            f"config.json: num_local_experts={config.raw('num_local_experts')} is not supported: "
            "only Granite models without experts (num_local_experts 0) can be served"
        )
    config.require(
        "position_embedding_type",
        [None, "nope"],
        default=None,
        why="rotary positions are not implemented; only models without positional encoding (nope) work",
    )
    norm = NormSpec(config.positive("rms_norm_eps", 1e-6))
    vocab_size = config.integer("vocab_size")
    return ModelSpec(
        family="granitemoehybrid",
        vocab_size=vocab_size,
        real_vocab_size=vocab_size,
        hidden_size=config.integer("hidden_size"),
        layers=_build_layers(config, norm),
        tied=config.flag("tie_word_embeddings", False),
        final_norm=norm,
        embedding_multiplier=config.number("embedding_multiplier", 1.0),
        residual_multiplier=config.number("residual_multiplier", 1.0),
        logits_scaling=config.positive("logits_scaling", 1.0),
        max_model_len=config.integer("max_position_embeddings")
        if "max_position_embeddings" in config
        else None,
    )


def _build_layers(config: ConfigValues, norm: NormSpec) -> tuple[LayerSpec, ...]:
    num_layers = config.integer("num_hidden_layers")
    key = "layer_types" if "layer_types" in config else "layers_block_type"
    words = config.raw(key)
    if words is None:
        words = ["linear_attention"] * num_layers
    if not isinstance(words, list) or len(words) != num_layers:
        raise LoadError(f"config.json: {key} must list one word for each of the {num_layers} layers")
    unknown = [word for word in words if word not in LINEAR_WORDS | ATTENTION_WORDS]
    if unknown:
        raise LoadError(
            f"config.json: {key} holds {unknown[0]!r}, which is not supported; "
            f"supported: {', '.join(sorted(LINEAR_WORDS | ATTENTION_WORDS))}"
        )
    mlp = MlpSpec(config.integer("shared_intermediate_size"))
    linear = _build_mamba2(config, norm) if LINEAR_WORDS & set(words) else None
    attention = _build_attention(config) if ATTENTION_WORDS & set(words) else None
    layers = []
    for word in words:
        mixer = linear if word in LINEAR_WORDS else attention
        assert mixer is not None
        layers.append(LayerSpec(norm, mixer, norm, mlp))
    return tuple(layers)


def _build_mamba2(config: ConfigValues, norm: NormSpec) -> Mamba2Spec:
    inner_size = int(config.positive("mamba_expand", 2) * config.integer("hidden_size"))
    num_heads = config.integer("mamba_n_heads")
    head_dim = inner_size // num_heads
    if config.raw("mamba_d_head") not in (None, "auto"):
        head_dim = config.integer("mamba_d_head")
    if num_heads * head_dim != inner_size:
        raise LoadError(
            f"config.json: mamba_n_heads * mamba_d_head = {num_heads * head_dim}, "
            f"but mamba_expand * hidden_size = {inner_size}"
        )
    mixer = Mamba2Spec(
        num_heads=num_heads,
        head_dim=head_dim,
        state_size=config.integer("mamba_d_state"),
        num_groups=config.integer("mamba_n_groups", 1),
        conv_width=config.integer("mamba_d_conv", 4, minimum=2),
        dt_limit=config.limits("time_step_limit"),
        norm_eps=norm.eps,
        has_conv_bias=config.flag("mamba_conv_bias", True),
        has_proj_bias=config.flag("mamba_proj_bias", False),
    )
    check_groups(mixer)
    return mixer


def _build_attention(config: ConfigValues) -> AttentionSpec:
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", num_heads)
    if num_heads % kv_heads:
        raise LoadError(f"config.json: {num_heads} query heads can't share {kv_heads} key and value heads")
    if "head_dim" not in config and hidden_size % num_heads:
        raise LoadError(f"config.json: hidden_size={hidden_size} is no multiple of {num_heads} heads")
    return AttentionSpec(
        num_heads=num_heads,
        kv_heads=kv_heads,
        head_dim=config.integer("head_dim", hidden_size // num_heads),
        scale=config.number("attention_multiplier", 1.0),
        has_bias=config.flag("attention_bias", False),
    )


def rules(spec: ModelSpec) -> list[Rule]:
    """Return the rules of a Granite hybrid model."""
    model = Scope("", ("model.",))
    hidden_size = spec.hidden_size
    table = (spec.vocab_size, hidden_size)
    result = [
        model.rule("embedding", "embed_tokens.weight", table, "embedding"),
        Rule("head", ("lm_head.weight",), table, "spare" if spec.tied else "linear"),
        norm_rule(model, "final_norm", "norm", hidden_size),
    ]
    for index, layer in enumerate(spec.layers):
        assert layer.mlp is not None
        scope = model.inner(f"layers.{index}", f"layers.{index}")
        mixer_name = "self_attn" if isinstance(layer.mixer, AttentionSpec) else "mamba"
        mlp = scope.inner("mlp", "shared_mlp")
        size = layer.mlp.intermediate_size
        result += [
            norm_rule(scope, "mixer_norm", "input_layernorm", hidden_size),
            *mixer_rules(scope.inner("mixer", mixer_name), hidden_size, layer.mixer),
            norm_rule(scope, "mlp_norm", "post_attention_layernorm", hidden_size),
            *mlp.linear("gate_up", "input_linear", (2 * size, hidden_size)),
            *mlp.linear("down", "output_linear", (hidden_size, size)),
        ]
    return result
