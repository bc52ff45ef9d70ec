"""Causal attention with grouped queries over cached keys and values, without positional encoding.

Owns its weights. Keys and values live in the KV pool; the arithmetic is in the ops.
"""

import torch
from torch import Tensor

from mambad.engine.model_inputs import DecodeInputs, Pools, PrefillInputs
from mambad.engine.models.spec import AttentionSpec
from mambad.engine.weights import Weights
from mambad.kernels.ops import Ops, PackedLinear


class Attention:
    """Mixer of one layer; `prefix` names its tensors in `weights`, `index` its blocks in the pool."""

    def __init__(self, spec: AttentionSpec, index: int, weights: Weights, prefix: str, ops: Ops) -> None:
        self._spec = spec
        self._index = index
        self._ops = ops
        self._qkv_proj = _pack_qkv(weights, prefix, ops)
        self._o_proj = weights.pack(f"{prefix}o_proj", ops)

    def prefill(self, hidden: Tensor, inputs: PrefillInputs, pools: Pools) -> Tensor:
        """Map hidden (T, hidden) to (T, hidden); the tokens' keys and values are written to their blocks."""
        q, k, v = self._project(hidden)
        k_cache, v_cache = pools.kv.layer(self._index)
        table = pools.block_table
        self._ops.kv_write(k, v, k_cache, v_cache, inputs.positions, table, inputs.table_rows)
        y = self._ops.attention_prefill(
            q,
            k_cache,
            v_cache,
            table,
            inputs.chunk_rows,
            inputs.chunk_positions,
            inputs.chunks.starts,
            self._spec.scale,
        )
        return self._ops.linear(y.flatten(1), self._o_proj)

    def decode(self, hidden: Tensor, inputs: DecodeInputs, pools: Pools) -> Tensor:
        """Map hidden (B, hidden) to (B, hidden); the tokens' keys and values are written to their blocks."""
        q, k, v = self._project(hidden)
        k_cache, v_cache = pools.kv.layer(self._index)
        table = pools.block_table
        self._ops.kv_write(k, v, k_cache, v_cache, inputs.positions, table, inputs.slots)
        y = self._ops.attention_decode(
            q, k_cache, v_cache, table, inputs.slots, inputs.positions, self._spec.scale
        )
        return self._ops.linear(y.flatten(1), self._o_proj)

    def _project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (T, Hq, Dh), k and v (T, Hkv, Dh), as views of one tensor."""
        spec = self._spec
        num_heads, kv_heads = spec.num_heads, spec.kv_heads
        qkv = self._ops.linear(hidden, self._qkv_proj).view(hidden.shape[0], -1, spec.head_dim)
        return qkv[:, :num_heads], qkv[:, num_heads : num_heads + kv_heads], qkv[:, num_heads + kv_heads :]


def _pack_qkv(weights: Weights, prefix: str, ops: Ops) -> PackedLinear:
    """Pack the three layers of one input as one, their outputs one after the other."""
    names = [f"{prefix}{name}_proj" for name in "qkv"]
    weight = torch.cat([weights.take(f"{name}.weight") for name in names])
    biases = [weights.take_optional(f"{name}.bias") for name in names]
    present = [bias for bias in biases if bias is not None]
    return weights.pack_tensors(f"{prefix}qkv_proj", weight, torch.cat(present) if present else None, ops)
