"""The linear layer in plain torch: one matrix-vector product a row.

Not one product for all rows: BLAS chooses its code by the number of rows, and the last bits with it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mambad.kernels.ops import PackedLinear
from mambad.kernels.reference.slots import fresh


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceLinear:
    """A `PackedLinear`: weight (N, K) float32 and bias (N,) float32 or None."""

    weight: Tensor
    bias: Tensor | None

    @property
    def num_out(self) -> int:
        """Number of output features N."""
        return self.weight.shape[0]

    @property
    def num_in(self) -> int:
        """Number of input features K."""
        return self.weight.shape[1]

    @property
    def num_bytes(self) -> int:
        """Memory that weight and bias take, in bytes."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)


def pack_linear(weight: Tensor, bias: Tensor | None) -> ReferenceLinear:
    """Implement `Ops.pack_linear`; bfloat16 is widened, which is exact."""
    return ReferenceLinear(fresh(weight.float()), None if bias is None else fresh(bias.float()))


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    """Implement `Ops.linear`."""
    assert isinstance(packed, ReferenceLinear), "packed by another implementation"
    out = torch.empty((x.shape[0], packed.num_out), dtype=x.dtype, device=x.device)
    for row in range(x.shape[0]):
        out[row] = packed.weight @ fresh(x[row])
    return out if packed.bias is None else out + packed.bias
