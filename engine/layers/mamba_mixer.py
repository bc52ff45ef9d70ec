"""The Mamba-1 mixer (arXiv:2312.00752, figure 3): projections around a convolution and a selective scan.

Owns its weights. Its states live in the state pool; the arithmetic is in the ops.
"""

from torch import Tensor

from mambad.engine.model_inputs import DecodeInputs, Pools, PrefillInputs
from mambad.engine.models.spec import Mamba1Spec
from mambad.engine.weights import Weights
from mambad.kernels.ops import Ops


class MambaMixer:
    """Mixer of one layer; `prefix` names its tensors in `weights`, `index` its states in the pool."""

    def __init__(self, spec: Mamba1Spec, index: int, weights: Weights, prefix: str, ops: Ops) -> None:
        self._spec = spec
        self._index = index
        self._ops = ops
        self._in_proj = weights.pack(f"{prefix}in_proj", ops)
        self._conv_weight = weights.take(f"{prefix}conv.weight")
        self._conv_bias = weights.take_optional(f"{prefix}conv.bias")
        self._x_proj = weights.pack(f"{prefix}x_proj", ops)
        self._dt_proj = weights.pack(f"{prefix}dt_proj", ops)
        self._dt_bias = weights.take(f"{prefix}dt_bias")
        self._A = weights.take(f"{prefix}decay")
        self._D = weights.take(f"{prefix}skip")
        self._out_proj = weights.pack(f"{prefix}out_proj", ops)

    def prefill(self, hidden: Tensor, inputs: PrefillInputs, pools: Pools) -> Tensor:
        """Map hidden (T, hidden) to (T, hidden); conv and ssm states are changed in place."""
        x, z = self._project(hidden)
        conv_state, ssm_state = self._states(pools)
        x = self._ops.conv_prefill(x, self._conv_weight, self._conv_bias, conv_state, inputs.chunks)
        dt, B, C = self._select(x)
        y = self._ops.selective_scan(
            x, dt, self._A, B, C, self._D, z, self._dt_bias, ssm_state, inputs.chunks
        )
        return self._ops.linear(y, self._out_proj)

    def decode(self, hidden: Tensor, inputs: DecodeInputs, pools: Pools) -> Tensor:
        """Map hidden (B, hidden) to (B, hidden); conv and ssm states are changed in place."""
        slots = inputs.slots
        x, z = self._project(hidden)
        conv_state, ssm_state = self._states(pools)
        x = self._ops.conv_update(x, self._conv_weight, self._conv_bias, conv_state, slots, slots)
        dt, B, C = self._select(x)
        y = self._ops.selective_state_update(
            x, dt, self._A, B, C, self._D, z, self._dt_bias, ssm_state, slots, slots
        )
        return self._ops.linear(y, self._out_proj)

    def _states(self, pools: Pools) -> tuple[Tensor, Tensor]:
        return pools.states.layer(self._index, "conv"), pools.states.layer(self._index, "ssm")

    def _project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return x and z, both (T, E), as views of one tensor."""
        xz = self._ops.linear(hidden, self._in_proj)
        return xz[:, : self._spec.inner_size], xz[:, self._spec.inner_size :]

    def _select(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return dt (T, E) before bias and softplus, and B and C (T, N)."""
        rank, state_size = self._spec.dt_rank, self._spec.state_size
        selection = self._ops.linear(x, self._x_proj)
        dt = self._ops.linear(selection[:, :rank], self._dt_proj)
        return dt, selection[:, rank : rank + state_size], selection[:, rank + state_size :]
