"""The Mamba-2 mixer (arXiv:2405.21060, section 7): one projection, convolution, SSD, gated norm.

Owns its weights. Its states live in the state pool; the arithmetic is in the ops.
"""

from torch import Tensor

from mambad.engine.model_inputs import DecodeInputs, Pools, PrefillInputs
from mambad.engine.models.spec import Mamba2Spec
from mambad.engine.weights import Weights
from mambad.kernels.ops import Ops


class Mamba2Mixer:
    """Mixer of one layer; `prefix` names its tensors in `weights`, `index` its states in the pool."""

    def __init__(self, spec: Mamba2Spec, index: int, weights: Weights, prefix: str, ops: Ops) -> None:
        self._spec = spec
        self._index = index
        self._ops = ops
        self._in_proj = weights.pack(f"{prefix}in_proj", ops)
        self._conv_weight = weights.take(f"{prefix}conv.weight")
        self._conv_bias = weights.take_optional(f"{prefix}conv.bias")
        self._dt_bias = weights.take(f"{prefix}dt_bias")
        self._A = weights.take(f"{prefix}decay")
        self._D = weights.take(f"{prefix}skip")
        self._norm = weights.take(f"{prefix}norm")
        self._out_proj = weights.pack(f"{prefix}out_proj", ops)

    def prefill(self, hidden: Tensor, inputs: PrefillInputs, pools: Pools) -> Tensor:
        """Map hidden (T, hidden) to (T, hidden); conv and ssm states are changed in place."""
        z, xBC, dt = self._project(hidden)
        conv_state, ssm_state = self._states(pools)
        xBC = self._ops.conv_prefill(xBC, self._conv_weight, self._conv_bias, conv_state, inputs.chunks)
        x, B, C = self._split(xBC)
        limit = self._spec.dt_limit
        y = self._ops.ssd_scan(x, dt, self._A, B, C, self._D, self._dt_bias, limit, ssm_state, inputs.chunks)
        return self._finish(y, z)

    def decode(self, hidden: Tensor, inputs: DecodeInputs, pools: Pools) -> Tensor:
        """Map hidden (B, hidden) to (B, hidden); conv and ssm states are changed in place."""
        slots = inputs.slots
        z, xBC, dt = self._project(hidden)
        conv_state, ssm_state = self._states(pools)
        xBC = self._ops.conv_update(xBC, self._conv_weight, self._conv_bias, conv_state, slots, slots)
        x, B, C = self._split(xBC)
        limit = self._spec.dt_limit
        y = self._ops.ssd_state_update(
            x, dt, self._A, B, C, self._D, self._dt_bias, limit, ssm_state, slots, slots
        )
        return self._finish(y, z)

    def _states(self, pools: Pools) -> tuple[Tensor, Tensor]:
        return pools.states.layer(self._index, "conv"), pools.states.layer(self._index, "ssm")

    def _project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return z (T, E), xBC (T, E + 2GN) and dt (T, H), as views of one tensor."""
        inner_size = self._spec.inner_size
        dt_start = inner_size + self._spec.conv_size
        projected = self._ops.linear(hidden, self._in_proj)
        return projected[:, :inner_size], projected[:, inner_size:dt_start], projected[:, dt_start:]

    def _split(self, xBC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return x (T, H, P), B and C (T, G, N), as views."""
        spec = self._spec
        B_start, C_start = spec.inner_size, spec.inner_size + spec.num_groups * spec.state_size
        return (
            xBC[:, :B_start].view(-1, spec.num_heads, spec.head_dim),
            xBC[:, B_start:C_start].view(-1, spec.num_groups, spec.state_size),
            xBC[:, C_start:].view(-1, spec.num_groups, spec.state_size),
        )

    def _finish(self, y: Tensor, z: Tensor) -> Tensor:
        """Gate, normalise by groups and project: y (T, H, P), z (T, E) -> (T, hidden)."""
        spec = self._spec
        gated = self._ops.gated_rms_norm(y.flatten(1), z, self._norm, spec.norm_eps, spec.num_groups)
        return self._ops.linear(gated, self._out_proj)
