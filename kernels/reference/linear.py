"""The linear layer in plain torch: one matrix-vector product a row.

Not one product for all rows: BLAS chooses its code by the number of rows, and the last bits with it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mambad.kernels.ops import PackedLinear
from mambad.kernels.quantization import WeightFormat
from mambad.kernels.reference.quantized import ReferenceQuantized, pack_quantized, quantized_linear
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


def pack_linear(
    weight: Tensor, bias: Tensor | None, weight_format: WeightFormat | None = None
) -> ReferenceLinear | ReferenceQuantized:
    """Implement `Ops.pack_linear`; bfloat16 is widened, which is exact."""
    if weight_format is not None:
        return pack_quantized(weight, bias, weight_format)
    return ReferenceLinear(fresh(weight.float()), None if bias is None else fresh(bias.float()))


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    """Implement `Ops.linear`."""
    if isinstance(packed, ReferenceQuantized):
        return quantized_linear(x, packed)
    assert isinstance(packed, ReferenceLinear), "packed by another implementation"
    out = torch.empty((x.shape[0], packed.num_out), dtype=x.dtype, device=x.device)
    for row in range(x.shape[0]):
        out[row] = packed.weight @ fresh(x[row])
    return out if packed.bias is None else out + packed.bias


def embed_packed(packed: PackedLinear, token_ids: Tensor, multiplier: float) -> Tensor:
    """Implement `Ops.embed` for an embedding that is a packed linear layer."""
    assert isinstance(packed, ReferenceLinear), "packed by another implementation, or quantized"
    if token_ids.numel() and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < packed.num_out:
        raise ValueError("embed_packed: a token id is beyond the embedding")
    return packed.weight[token_ids] * multiplier
