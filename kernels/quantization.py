"""How weights become integers: the settings of `--quantization`, and the rounding.

Owns the choice of integers and scales, in torch, so that every implementation of the ops computes with the
same ones; they own only how these lie in memory. Activations are rounded by the ops, row by row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_GROUP_SIZE = 65536
"""Largest group: the product of two bytes, summed over it, fits in 32 bits."""

_ROWS_ELEMENTS = 1 << 18
# Elements that are rounded at a time: few enough for a cache.
_NUM_REFINEMENTS = 3


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Integers of a weight.

    Attributes:
        num_bits: 8 or 4.
        group_size: inputs that share a scale, a multiple of 8; a larger one than the layer has inputs gives
            each output one scale.
    """

    num_bits: int
    group_size: int

    def group_size_for(self, num_in: int) -> int:
        """Return the group size in a layer of num_in inputs: no larger than it has, rounded up to 8."""
        return min(self.group_size, -(-num_in // 8) * 8, MAX_GROUP_SIZE)

    def num_bytes(self, num_out: int, num_in: int) -> int:
        """Return the bytes of a weight's integers and scales, without padding."""
        num_groups = -(-num_in // self.group_size_for(num_in))
        return num_out * (-(-num_in * self.num_bits // 8) + 2 * num_groups)


INT8 = WeightFormat(8, 64)
INT4 = WeightFormat(4, 32)


@dataclass(frozen=True, slots=True, eq=False)
class IntegerWeight:
    """A weight (N, K) as integers times scales.

    Attributes:
        integers: (N, G, group size) int8, -127..127 or -8..7; 0 beyond K.
        scales: (N, G) bfloat16; NaN where the group holds a number that is not finite.
        num_in: K.
        weight_format: what it was made with.
    """

    integers: Tensor
    scales: Tensor
    num_in: int
    weight_format: WeightFormat


def round_weight(weight: Tensor, weight_format: WeightFormat) -> IntegerWeight:
    """Return the integers and scales of a weight (N, K), float32 or bfloat16."""
    num_out, num_in = weight.shape
    group_size = weight_format.group_size_for(num_in)
    num_groups = -(-num_in // group_size)
    integers = torch.zeros(num_out, num_groups, group_size, dtype=torch.int8)
    scales = torch.empty(num_out, num_groups, dtype=torch.bfloat16)
    round_groups = _round_to_8_bits if weight_format.num_bits == 8 else _round_to_4_bits
    num_rows = max(_ROWS_ELEMENTS // num_in, 1)
    for first in range(0, num_out, num_rows):
        rows = slice(first, first + num_rows)
        part = torch.zeros(weight[rows].shape[0], num_groups * group_size)
        part[:, :num_in] = weight[rows]
        groups = part.view(-1, num_groups, group_size)
        # A group with NaN or an infinity has integers 0 and the scale NaN: its products are NaN.
        is_finite = groups.isfinite().all(-1, keepdim=True)
        rounded, scale = round_groups(torch.where(is_finite, groups, 0.0))
        integers[rows] = rounded.to(torch.int8)
        scales[rows] = torch.where(is_finite, scale, torch.nan).squeeze(-1).to(torch.bfloat16)
    return IntegerWeight(integers, scales, num_in, weight_format)


def _round_to_8_bits(groups: Tensor) -> tuple[Tensor, Tensor]:
    scale = _storable(groups.abs().amax(-1, keepdim=True) / 127)
    return (groups / scale).round().clamp(-127, 127), scale


def _round_to_4_bits(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Start from the scale that makes the largest number -8, then fit scale and integers to each other."""
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    scale = _nonzero(largest / -8)
    for _ in range(_NUM_REFINEMENTS):
        rounded = (groups / scale).round().clamp(-8, 7)
        # The scale of the least squared error for these integers.
        fitted = (groups * rounded).sum(-1, keepdim=True) / (rounded * rounded).sum(-1, keepdim=True)
        scale = torch.where(fitted.isfinite() & (fitted != 0), fitted, scale)
    scale = _storable(scale)
    return (groups / scale).round().clamp(-8, 7), scale


def _nonzero(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 1.0, scale)


def _storable(scale: Tensor) -> Tensor:
    """Return the scale as it is kept, bfloat16; one that is 0 there becomes 1, and its integers 0."""
    return _nonzero(scale.to(torch.bfloat16).to(torch.float32))
