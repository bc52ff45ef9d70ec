"""Quantized linear layers on the C library: packed integers and their lifetime."""

import ctypes
import weakref

from torch import Tensor

from mambad.kernels.cpu.arguments import check_dims, rows, whole
from mambad.kernels.cpu.library import Library, QuantizedSource
from mambad.kernels.cpu.pool import Pool
from mambad.kernels.quantization import WeightFormat, round_weight


class CpuQuantized:
    """A `PackedLinear` of integers in C memory, which is freed with the object.

    Attributes:
        address: of the C struct.
        num_out: output features N.
        num_in: input features K.
        num_bytes: memory of integers, scales and bias in bytes, padding included.
    """

    def __init__(self, library: Library, address: int, num_out: int, num_in: int) -> None:
        self.address = address
        self.num_out = num_out
        self.num_in = num_in
        self.num_bytes = library.quantized_bytes(address)
        finalizer = weakref.finalize(self, library.free_quantized, address)
        finalizer.atexit = False  # a process that ends gives its memory back faster by itself


def pack_quantized(
    pool: Pool, weight: Tensor, bias: Tensor | None, weight_format: WeightFormat
) -> CpuQuantized:
    """Implement `Ops.pack_linear` for a weight that becomes integers."""
    check_dims("weight", weight, 2)
    num_out, num_in = weight.shape
    whole("weight", weight, (num_out, num_in), weight.dtype)
    bias = None if bias is None else whole("bias", bias.float(), (num_out,))
    rounded = round_weight(weight, weight_format)
    source = QuantizedSource(
        rounded.integers.data_ptr(),
        rounded.scales.data_ptr(),
        None if bias is None else bias.data_ptr(),
        num_out,
        num_in,
        rounded.integers.shape[2],
        weight_format.num_bits == 4,
    )
    address = pool.library.pack_quantized(pool.address(), ctypes.byref(source))
    if not address:
        raise MemoryError(f"no memory for a packed weight of shape {(num_out, num_in)}")
    return CpuQuantized(pool.library, address, num_out, num_in)


def quantized_linear(pool: Pool, x: Tensor, packed: CpuQuantized) -> Tensor:
    """Implement `Ops.linear` for a `CpuQuantized`."""
    num_rows = x.shape[0]
    x = rows("x", x, (num_rows, packed.num_in))
    out = pool.new((num_rows, packed.num_out))
    pool.call("quantized_linear", num_rows, packed.address, x.data_ptr(), x.stride(0), out.data_ptr())
    return out
