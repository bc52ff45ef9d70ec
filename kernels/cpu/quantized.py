"""Packs linear layers as integers for the C library; `linear.py` multiplies by them."""

import ctypes

from torch import Tensor

from mambad.kernels.cpu.arguments import check_dims, whole
from mambad.kernels.cpu.library import QuantizedSource
from mambad.kernels.cpu.linear import CpuLinear
from mambad.kernels.cpu.pool import Pool
from mambad.kernels.quantization import WeightFormat, round_weight


def pack_quantized(pool: Pool, weight: Tensor, bias: Tensor | None, weight_format: WeightFormat) -> CpuLinear:
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
    library = pool.library
    address = library.pack_quantized(pool.address(), ctypes.byref(source))
    if not address:
        raise MemoryError(f"no memory for a packed weight of shape {(num_out, num_in)}")
    num_bytes = library.quantized_bytes(address)
    return CpuLinear("quantized_linear", address, (num_out, num_in), num_bytes, library.free_quantized)
