"""RMS normalisation in plain torch, without and with Mamba-2's gate.

Only the sum over a row's channels is inexact in its order; it alone is taken row by row.
"""

import torch
from torch import Tensor

from mambad.kernels.reference.activation import silu_rows
from mambad.kernels.reference.slots import fresh


def _normalise(x: Tensor, eps: float) -> Tensor:
    squares = x.square()
    means = torch.empty((x.shape[0], 1), dtype=x.dtype, device=x.device)
    for row in range(x.shape[0]):
        means[row] = fresh(squares[row]).mean()
    return x * (1.0 / torch.sqrt(means + eps))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Implement `Ops.rms_norm`."""
    return _normalise(x, eps) * weight


def add_rms_norm(residual: Tensor, update: Tensor, multiplier: float, weight: Tensor, eps: float) -> Tensor:
    """Implement `Ops.add_rms_norm`."""
    residual += update * multiplier
    return rms_norm(residual, weight, eps)


def gated_rms_norm(y: Tensor, z: Tensor, weight: Tensor, eps: float, num_groups: int) -> Tensor:
    """Implement `Ops.gated_rms_norm`."""
    num_tokens, num_channels = y.shape
    gated = y * silu_rows(z)
    groups = gated.view(num_tokens * num_groups, num_channels // num_groups)
    return _normalise(groups, eps).view(num_tokens, num_channels) * weight
