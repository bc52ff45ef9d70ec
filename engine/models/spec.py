"""What a model is made of, as plain numbers: the layer list that everything else is derived from.

A family's adapter builds a `ModelSpec` from the checkpoint's configuration; the decoder, the loader's
rules, the state pool, the KV pool and the memory plan read it. Frozen values. No torch, no weights.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

FLOAT32_BYTES = 4

StateDtype: TypeAlias = Literal["float32", "bfloat16"]
STATE_DTYPE_BYTES: dict[StateDtype, int] = {"float32": FLOAT32_BYTES, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class StateSpec:
    """One tensor of recurrent state that a layer keeps for every slot.

    Attributes:
        name: `conv` or `ssm`.
        shape: shape of one slot's part.
        dtype: how its numbers are kept; every computation is in float32.
    """

    name: str
    shape: tuple[int, ...]
    dtype: StateDtype = "float32"

    @property
    def num_bytes(self) -> int:
        """Bytes of one slot's part."""
        return math.prod(self.shape) * STATE_DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class NormSpec:
    """Root mean square norm over the hidden size, with weight."""

    eps: float


@dataclass(frozen=True, slots=True)
class Mamba1Spec:
    """Mamba-1 mixer (arXiv:2312.00752).

    Attributes:
        inner_size: channels E.
        state_size: N, per channel.
        conv_width: K.
        dt_rank: R, width of the low-rank step size.
        has_conv_bias: the convolution has a bias.
        has_proj_bias: in_proj and out_proj have biases.
        ssm_dtype: of the ssm state; conv states are float32.
    """

    inner_size: int
    state_size: int
    conv_width: int
    dt_rank: int
    has_conv_bias: bool
    has_proj_bias: bool
    ssm_dtype: StateDtype = "float32"

    def state_specs(self) -> tuple[StateSpec, ...]:
        """States of one slot: conv (K-1, E) and ssm (N, E), the transposed layout of the kernels."""
        return (
            StateSpec("conv", (self.conv_width - 1, self.inner_size)),
            StateSpec("ssm", (self.state_size, self.inner_size), self.ssm_dtype),
        )


@dataclass(frozen=True, slots=True)
class Mamba2Spec:
    """Mamba-2 mixer (arXiv:2405.21060).

    Attributes:
        num_heads: H.
        head_dim: P.
        state_size: N.
        num_groups: G; head h uses group h // (H / G), and the gated norm has G groups.
        conv_width: K.
        dt_limit: lowest and highest step size after softplus.
        norm_eps: of the gated norm.
        has_conv_bias: the convolution has a bias.
        has_proj_bias: in_proj and out_proj have biases.
        ssm_dtype: of the ssm state; conv states are float32.
    """

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    conv_width: int
    dt_limit: tuple[float, float]
    norm_eps: float
    has_conv_bias: bool
    has_proj_bias: bool
    ssm_dtype: StateDtype = "float32"

    @property
    def inner_size(self) -> int:
        """Channels H * P; not always a multiple of the hidden size."""
        return self.num_heads * self.head_dim

    @property
    def conv_size(self) -> int:
        """Channels that pass the convolution: x, B and C."""
        return self.inner_size + 2 * self.num_groups * self.state_size

    @property
    def proj_size(self) -> int:
        """Rows of in_proj, packed z | x | B | C | dt."""
        return self.inner_size + self.conv_size + self.num_heads

    def state_specs(self) -> tuple[StateSpec, ...]:
        """States of one slot: conv (K-1, E + 2GN) and ssm (H, P, N)."""
        return (
            StateSpec("conv", (self.conv_width - 1, self.conv_size)),
            StateSpec("ssm", (self.num_heads, self.head_dim, self.state_size), self.ssm_dtype),
        )


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Causal attention without positional encoding, grouped queries.

    Attributes:
        num_heads: query heads.
        kv_heads: key and value heads; query head h uses kv head h // (num_heads / kv_heads).
        head_dim: width of one head.
        scale: factor on the scores, as the checkpoint gives it.
        has_bias: the four projections have biases.
    """

    num_heads: int
    kv_heads: int
    head_dim: int
    scale: float
    has_bias: bool

    def state_specs(self) -> tuple[StateSpec, ...]:
        """No recurrent state: keys and values live in blocks."""
        return ()

    def block_bytes(self, block_size: int) -> int:
        """Bytes of the keys and values of `block_size` tokens."""
        return 2 * block_size * self.kv_heads * self.head_dim * FLOAT32_BYTES


MixerSpec: TypeAlias = Mamba1Spec | Mamba2Spec | AttentionSpec


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """Gated mlp: down(silu(gate(x)) * up(x)), without biases."""

    intermediate_size: int


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """norm, mixer, add; then, if there is an mlp: norm, mlp, add.

    `mlp` and `mlp_norm` are both set or both None.
    """

    mixer_norm: NormSpec
    mixer: MixerSpec
    mlp_norm: NormSpec | None = None
    mlp: MlpSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A whole model.

    Attributes:
        family: name of the family's adapter.
        vocab_size: rows of the embedding in the checkpoint, padding included.
        real_vocab_size: tokens that exist; logits are computed for these only.
        hidden_size: width of the residual stream.
        layers: in order; a layer's place in this tuple is its index everywhere.
        tied: the head is the embedding.
        final_norm: norm before the head.
        embedding_multiplier: factor on embeddings.
        residual_multiplier: factor on what a mixer or mlp adds to the stream.
        logits_scaling: logits are divided by this.
        max_model_len: longest sequence in tokens that the configuration promises, or None.
        eos_token_ids: ascending ids that end a sequence; may be empty.
    """

    family: str
    vocab_size: int
    real_vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    tied: bool
    final_norm: NormSpec
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    max_model_len: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def slot_bytes(self) -> int:
        """Bytes of the recurrent states of one slot in all layers."""
        return sum(state.num_bytes for layer in self.layers for state in layer.mixer.state_specs())

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one block of `block_size` tokens in all attention layers; 0 without attention."""
        return sum(attention.block_bytes(block_size) for attention in self.attention_layers().values())

    def attention_layers(self) -> dict[int, AttentionSpec]:
        """The attention layers by their index."""
        return {
            index: layer.mixer
            for index, layer in enumerate(self.layers)
            if isinstance(layer.mixer, AttentionSpec)
        }

    def with_ssm_dtype(self, dtype: StateDtype) -> "ModelSpec":
        """Return the same model with ssm states of another dtype."""
        return replace(self, layers=tuple(_with_ssm_dtype(layer, dtype) for layer in self.layers))


def _with_ssm_dtype(layer: LayerSpec, dtype: StateDtype) -> LayerSpec:
    if isinstance(layer.mixer, AttentionSpec):
        return layer
    return replace(layer, mixer=replace(layer.mixer, ssm_dtype=dtype))
