"""The quantized linear layer in plain torch, one row at a time, from the integers that all kernels share."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mambad.kernels.quantization import IntegerWeight, WeightFormat, round_weight
from mambad.kernels.reference.slots import fresh

_EXACT_GROUP = 1024
# Sums of so many products of 8 bits are integers below 2^24: exact in float32, in any order.
_TINY = 2.0**-100
# A group of smaller numbers counts as 0.


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceQuantized:
    """A `PackedLinear`: integers with their scales, and bias (N,) float32 or None."""

    weight: IntegerWeight
    bias: Tensor | None

    @property
    def num_out(self) -> int:
        """Number of output features N."""
        return self.weight.integers.shape[0]

    @property
    def num_in(self) -> int:
        """Number of input features K."""
        return self.weight.num_in

    @property
    def num_bytes(self) -> int:
        """Memory that integers, scales and bias take, in bytes."""
        bias_bytes = 0 if self.bias is None else self.bias.nbytes
        return self.weight.integers.nbytes + self.weight.scales.nbytes + bias_bytes


def pack_quantized(weight: Tensor, bias: Tensor | None, weight_format: WeightFormat) -> ReferenceQuantized:
    """Implement `Ops.pack_linear` for a weight that becomes integers."""
    return ReferenceQuantized(
        round_weight(weight, weight_format), None if bias is None else fresh(bias.float())
    )


def quantized_linear(x: Tensor, packed: ReferenceQuantized) -> Tensor:
    """Implement `Ops.linear` for a `ReferenceQuantized`: exact products a group, added in order of k."""
    weight = packed.weight
    num_out, num_groups, group_size = weight.integers.shape
    dtype = torch.float32 if group_size <= _EXACT_GROUP else torch.float64
    # (G, N, group size) and (G, N).
    integers, scales = weight.integers.transpose(0, 1).to(dtype), weight.scales.t().float().contiguous()
    out = torch.empty(x.shape[0], num_out)
    for row in range(x.shape[0]):
        rounded, row_scales = round_row(x[row], num_groups, group_size)
        products = torch.bmm(integers, rounded.to(dtype).unsqueeze(-1)).squeeze(-1).float()
        total = torch.zeros(num_out)
        for group in range(num_groups):
            total = total + products[group] * (row_scales[group] * scales[group])
        out[row] = total
    return out if packed.bias is None else out + packed.bias


def round_row(row: Tensor, num_groups: int, group_size: int) -> tuple[Tensor, Tensor]:
    """Return a row's integers (G, group size), as float32, and scales (G,): NaN where not finite."""
    groups = torch.nn.functional.pad(row, (0, num_groups * group_size - row.shape[0])).view(num_groups, -1)
    largest = groups.abs().amax(-1)
    is_finite, is_tiny = largest.isfinite(), largest < _TINY
    scales = torch.where(is_tiny, 0.0, largest / 127)
    factors = torch.where(is_tiny, 0.0, 127 / largest)
    integers = (groups * factors.unsqueeze(-1)).round()
    return torch.where(is_finite.unsqueeze(-1), integers, 0.0), torch.where(is_finite, scales, torch.nan)
