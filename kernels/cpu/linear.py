"""Linear layers on the C library: packed weights and their lifetime."""

import weakref

import torch
from torch import Tensor

from mambad.kernels.cpu.arguments import check_dims, rows, whole
from mambad.kernels.cpu.library import Library
from mambad.kernels.cpu.pool import Pool
from mambad.kernels.ops import PackedLinear


class CpuLinear:
    """A `PackedLinear` in C memory, which is freed with the object.

    Attributes:
        address: of the C struct.
        num_out: output features N.
        num_in: input features K.
        num_bytes: memory of weight and bias in bytes, padding included.
    """

    def __init__(self, library: Library, address: int, num_out: int, num_in: int) -> None:
        self.address = address
        self.num_out = num_out
        self.num_in = num_in
        self.num_bytes = library.linear_bytes(address)
        finalizer = weakref.finalize(self, library.free_linear, address)
        finalizer.atexit = False  # a process that ends gives its memory back faster by itself


def pack_linear(pool: Pool, weight: Tensor, bias: Tensor | None) -> CpuLinear:
    """Implement `Ops.pack_linear`."""
    check_dims("weight", weight, 2)
    num_out, num_in = weight.shape
    is_bfloat16 = weight.dtype is torch.bfloat16
    weight = whole("weight", weight, (num_out, num_in), torch.bfloat16 if is_bfloat16 else torch.float32)
    bias = None if bias is None else whole("bias", bias.float(), (num_out,))
    sources = (weight.data_ptr(), None if bias is None else bias.data_ptr())
    address = pool.library.pack_linear(pool.address(), *sources, num_out, num_in, is_bfloat16)
    if not address:
        raise MemoryError(f"no memory for a packed weight of shape {(num_out, num_in)}")
    return CpuLinear(pool.library, address, num_out, num_in)


def embed_packed(pool: Pool, packed: PackedLinear, token_ids: Tensor, multiplier: float) -> Tensor:
    """Implement `Ops.embed` for an embedding that is a packed linear layer."""
    assert isinstance(packed, CpuLinear), "packed by another implementation, or quantized"
    check_dims("token_ids", token_ids, 1)
    num_rows = token_ids.shape[0]
    token_ids = whole("token_ids", token_ids, (num_rows,), torch.int64)
    out = pool.new((num_rows, packed.num_in))
    pool.call("embed_packed", num_rows, token_ids.data_ptr(), packed.address, out.data_ptr(), multiplier)
    return out


def linear(pool: Pool, x: Tensor, packed: PackedLinear) -> Tensor:
    """Implement `Ops.linear`."""
    assert isinstance(packed, CpuLinear), "packed by another implementation"
    num_rows = x.shape[0]
    x = rows("x", x, (num_rows, packed.num_in))
    out = pool.new((num_rows, packed.num_out))
    pool.call("linear", num_rows, packed.address, x.data_ptr(), x.stride(0), out.data_ptr())
    return out
