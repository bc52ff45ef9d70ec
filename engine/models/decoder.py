"""The one generic decoder: embedding, layers, final norm, head. Families differ only in their spec.

Owns the weights through its layers. States and KV blocks are the pools'; arithmetic is the ops'; sampling
is the sampler's.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from mambad.engine.layers.attention import Attention
from mambad.engine.layers.mamba2_mixer import Mamba2Mixer
from mambad.engine.layers.mamba_mixer import MambaMixer
from mambad.engine.layers.mlp import Mlp
from mambad.engine.model_inputs import DecodeInputs, Pools, PrefillInputs
from mambad.engine.models.spec import LayerSpec, Mamba1Spec, Mamba2Spec, MixerSpec, ModelSpec
from mambad.engine.weights import Weights
from mambad.kernels.ops import Ops


class Mixer(Protocol):
    """What mixes tokens of a sequence: a recurrent layer or attention."""

    def prefill(self, hidden: Tensor, inputs: PrefillInputs, pools: Pools) -> Tensor:
        """Map hidden (T, hidden) float32 to (T, hidden) and advance the states."""
        ...

    def decode(self, hidden: Tensor, inputs: DecodeInputs, pools: Pools) -> Tensor:
        """Map hidden (B, hidden) float32 to (B, hidden) and advance the states."""
        ...


class Layer:
    """norm, mixer, add; then norm, mlp, add, if the layer has an mlp."""

    def __init__(self, spec: ModelSpec, index: int, weights: Weights, ops: Ops) -> None:
        layer = spec.layers[index]
        prefix = f"layers.{index}."
        self._spec: LayerSpec = layer
        self._ops = ops
        self._multiplier = spec.residual_multiplier
        self._mixer_norm = weights.take(f"{prefix}mixer_norm")
        self._mixer = _build_mixer(layer.mixer, index, weights, f"{prefix}mixer.", ops)
        self._mlp_norm = None if layer.mlp is None else weights.take(f"{prefix}mlp_norm")
        self._mlp = None if layer.mlp is None else Mlp(weights, f"{prefix}mlp.", ops)

    def prefill(self, residual: Tensor, inputs: PrefillInputs, pools: Pools) -> Tensor:
        """Return the residual stream (T, hidden) float32 after this layer; the argument is used up."""
        normed = self._ops.rms_norm(residual, self._mixer_norm, self._spec.mixer_norm.eps)
        return self._add_mlp(self._add(residual, self._mixer.prefill(normed, inputs, pools)))

    def decode(self, residual: Tensor, inputs: DecodeInputs, pools: Pools) -> Tensor:
        """Return the residual stream (B, hidden) float32 after this layer; the argument is used up."""
        normed = self._ops.rms_norm(residual, self._mixer_norm, self._spec.mixer_norm.eps)
        return self._add_mlp(self._add(residual, self._mixer.decode(normed, inputs, pools)))

    def _add_mlp(self, residual: Tensor) -> Tensor:
        if self._mlp is None or self._mlp_norm is None or self._spec.mlp_norm is None:
            return residual
        normed = self._ops.rms_norm(residual, self._mlp_norm, self._spec.mlp_norm.eps)
        return self._add(residual, self._mlp.forward(normed))

    def _add(self, residual: Tensor, update: Tensor) -> Tensor:
        # Multiplied and added in two steps, each exactly rounded: a fused one may depend on the row's place.
        if self._multiplier != 1.0:
            update.mul_(self._multiplier)
        return residual.add_(update)


class Decoder:
    """A loaded model. One thread at a time may call it.

    Args:
        spec: what it is made of.
        weights: where its tensors come from; all of them are taken.
        ops: the kernels.
        on_layer: called after every layer of every pass: the sign that a long step is alive.
    """

    def __init__(
        self, spec: ModelSpec, weights: Weights, ops: Ops, on_layer: Callable[[], None] | None = None
    ) -> None:
        self.spec = spec
        self._ops = ops
        self._on_layer = on_layer or (lambda: None)
        self._embedding = weights.take("embedding")
        self._layers = [Layer(spec, index, weights, ops) for index in range(len(spec.layers))]
        self._final_norm = weights.take("final_norm")
        head = self._embedding if spec.tied else weights.take("head")
        # Rows beyond the tokenizer are padding: without them no such id can get a logit.
        self._head = ops.pack_linear(head[: spec.real_vocab_size], None)
        assert not weights.left(), weights.left()

    def prefill(self, inputs: PrefillInputs, pools: Pools) -> Tensor:
        """Consume T tokens in chunks and advance the states of their slots.

        Returns:
            (T, hidden) float32, after the final norm.
        """
        residual = self._embed(inputs.token_ids)
        for layer in self._layers:
            residual = layer.prefill(residual, inputs, pools)
            self._on_layer()
        return self._ops.rms_norm(residual, self._final_norm, self.spec.final_norm.eps)

    def decode(self, inputs: DecodeInputs, pools: Pools) -> Tensor:
        """Consume one token of each of B rows and advance the states of their slots; padding rows touch none.

        Returns:
            (B, hidden) float32, after the final norm.
        """
        residual = self._embed(inputs.token_ids)
        for layer in self._layers:
            residual = layer.decode(residual, inputs, pools)
            self._on_layer()
        return self._ops.rms_norm(residual, self._final_norm, self.spec.final_norm.eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Map hidden (R, hidden), as prefill and decode return it, to logits (R, real_vocab) float32."""
        logits = self._ops.linear(hidden, self._head)
        return logits if self.spec.logits_scaling == 1.0 else logits.div_(self.spec.logits_scaling)

    def _embed(self, token_ids: Tensor) -> Tensor:
        rows = torch.index_select(self._embedding, 0, token_ids).to(torch.float32)
        return rows if self.spec.embedding_multiplier == 1.0 else rows.mul_(self.spec.embedding_multiplier)


def _build_mixer(spec: MixerSpec, index: int, weights: Weights, prefix: str, ops: Ops) -> Mixer:
    if isinstance(spec, Mamba1Spec):
        return MambaMixer(spec, index, weights, prefix, ops)
    if isinstance(spec, Mamba2Spec):
        return Mamba2Mixer(spec, index, weights, prefix, ops)
    return Attention(spec, index, weights, prefix, ops)
