"""The one generic decoder: embedding, layers, final norm, head. Families differ only in their spec.

Owns the weights through its layers. States and KV blocks are the pools'; arithmetic is the ops'; sampling
is the sampler's.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

from mambad.engine.layers.attention import Attention
from mambad.engine.layers.mamba2_mixer import Mamba2Mixer
from mambad.engine.layers.mamba_mixer import MambaMixer
from mambad.engine.layers.mlp import Mlp
from mambad.engine.model_inputs import DecodeInputs, Pools, PrefillInputs
from mambad.engine.models.spec import Mamba1Spec, Mamba2Spec, MixerSpec, ModelSpec
from mambad.engine.quantization import HEAD
from mambad.engine.weights import Weights
from mambad.kernels.ops import Ops, PackedLinear


class Mixer(Protocol):
    """What mixes tokens of a sequence: a recurrent layer or attention."""

    def prefill(self, hidden: Tensor, inputs: PrefillInputs, pools: Pools) -> Tensor:
        """Map hidden (T, hidden) float32 to (T, hidden) and advance the states."""
        ...

    def decode(self, hidden: Tensor, inputs: DecodeInputs, pools: Pools) -> Tensor:
        """Map hidden (B, hidden) float32 to (B, hidden) and advance the states."""
        ...


class _Norm(NamedTuple):
    weight: Tensor
    eps: float


class Decoder:
    """A loaded model. One thread at a time may call it.

    Args:
        spec: what it is made of.
        weights: where its tensors come from; all of them are taken.
        ops: the kernels.
        on_layer: called after every mixer and mlp of every pass: the sign that a long step is alive.

    Attributes:
        spec, ops: as given.
    """

    def __init__(
        self, spec: ModelSpec, weights: Weights, ops: Ops, on_layer: Callable[[], None] | None = None
    ) -> None:
        self.spec = spec
        self.ops = ops
        self._on_layer = on_layer or (lambda: None)
        embedding = weights.take("embedding")
        # A norm before each mixer and mlp, and one after the last.
        self._norms: list[_Norm] = []
        self._blocks: list[Mixer | Mlp] = []
        for index, layer in enumerate(spec.layers):
            prefix = f"layers.{index}."
            self._norms.append(_Norm(weights.take(f"{prefix}mixer_norm"), layer.mixer_norm.eps))
            self._blocks.append(_build_mixer(layer.mixer, index, weights, f"{prefix}mixer.", ops))
            if layer.mlp is not None and layer.mlp_norm is not None:
                self._norms.append(_Norm(weights.take(f"{prefix}mlp_norm"), layer.mlp_norm.eps))
                self._blocks.append(Mlp(weights, f"{prefix}mlp.", ops))
        self._norms.append(_Norm(weights.take("final_norm"), spec.final_norm.eps))
        head = embedding if spec.tied else weights.take("head")
        # Rows beyond the tokenizer are padding: without them no such id can get a logit.
        self._head = weights.pack_tensors(HEAD, head[: spec.real_vocab_size], None, ops)
        # Tied weights are held once, unless the head's are rounded.
        is_shared = spec.tied and weights.format_of(HEAD) is None
        self._embedding: Tensor | PackedLinear = self._head if is_shared else embedding
        assert not weights.left(), weights.left()

    def prefill(self, inputs: PrefillInputs, pools: Pools) -> Tensor:
        """Consume T tokens in chunks and advance the states of their slots.

        Returns:
            (T, hidden) float32, after the final norm.
        """
        return self._pass(inputs.token_ids, lambda mixer, normed: mixer.prefill(normed, inputs, pools))

    def decode(self, inputs: DecodeInputs, pools: Pools) -> Tensor:
        """Consume one token of each of B rows and advance the states of their slots; padding rows touch none.

        Returns:
            (B, hidden) float32, after the final norm.
        """
        return self._pass(inputs.token_ids, lambda mixer, normed: mixer.decode(normed, inputs, pools))

    def logits(self, hidden: Tensor) -> Tensor:
        """Map hidden (R, hidden), as prefill and decode return it, to logits (R, real_vocab) float32."""
        logits = self.ops.linear(hidden, self._head)
        if self.spec.logits_scaling != 1.0:
            self.ops.divide(logits, self.spec.logits_scaling)
        return logits

    def _pass(self, token_ids: Tensor, mix: Callable[[Mixer, Tensor], Tensor]) -> Tensor:
        """Take T tokens through all layers: norm, mixer, add; then norm, mlp, add where there is an mlp."""
        residual = self.ops.embed(self._embedding, token_ids, self.spec.embedding_multiplier)
        normed = self.ops.rms_norm(residual, *self._norms[0])
        for block, norm in zip(self._blocks, self._norms[1:], strict=True):
            update = block.forward(normed) if isinstance(block, Mlp) else mix(block, normed)
            normed = self.ops.add_rms_norm(residual, update, self.spec.residual_multiplier, *norm)
            self._on_layer()
        return normed


def _build_mixer(spec: MixerSpec, index: int, weights: Weights, prefix: str, ops: Ops) -> Mixer:
    if isinstance(spec, Mamba1Spec):
        return MambaMixer(spec, index, weights, prefix, ops)
    if isinstance(spec, Mamba2Spec):
        return Mamba2Mixer(spec, index, weights, prefix, ops)
    return Attention(spec, index, weights, prefix, ops)
