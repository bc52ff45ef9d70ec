"""SiLU, softplus, and the gated product of an MLP, in plain torch.

The formulas are spelled out: torch's fused versions use one code for whole vectors and another for the
rest, so that a value would depend on its place in the tensor.
"""

import torch
from torch import Tensor

from mambad.kernels.reference.slots import fresh

SOFTPLUS_THRESHOLD = 20.0


def silu(x: Tensor) -> Tensor:
    """Return x * sigmoid(x), elementwise."""
    return x / (1.0 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)), elementwise; above 20 that is x in float32."""
    return torch.where(x > SOFTPLUS_THRESHOLD, x, torch.log1p(torch.exp(x)))


def silu_rows(x: Tensor) -> Tensor:
    """Apply `silu` to x (T, D) one row at a time."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for row in range(x.shape[0]):
        out[row] = silu(fresh(x[row]))
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    """Implement `Ops.silu_mul`."""
    gate, up = gate_up.chunk(2, dim=1)
    return silu_rows(gate) * up


def divide(x: Tensor, divisor: float) -> None:
    """Implement `Ops.divide`."""
    x.div_(divisor)
