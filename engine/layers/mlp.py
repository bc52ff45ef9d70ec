"""The gated mlp: down(silu(gate(x)) * up(x)), gate and up in one projection.

Owns its weights. It keeps no state.
"""

from torch import Tensor

from mambad.engine.weights import Weights
from mambad.kernels.ops import Ops


class Mlp:
    """Mlp of one layer; `prefix` names its tensors in `weights`."""

    def __init__(self, weights: Weights, prefix: str, ops: Ops) -> None:
        self._ops = ops
        self._gate_up = weights.pack(f"{prefix}gate_up", ops)
        self._down = weights.pack(f"{prefix}down", ops)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden (T, hidden) to (T, hidden), row by row."""
        gate_up = self._ops.linear(hidden, self._gate_up)
        return self._ops.linear(self._ops.silu_mul(gate_up), self._down)
