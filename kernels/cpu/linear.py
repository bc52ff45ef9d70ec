"""Linear layers on the C library: packed weights and their lifetime."""

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from mambad.kernels.cpu.arguments import check_dims, rows, whole
from mambad.kernels.cpu.pool import Pool
from mambad.kernels.ops import PackedLinear


class CpuLinear:
    """A `PackedLinear` in C memory, which is freed with the object.

    Args:
        op: the op that multiplies by it.
        address: of the C struct.
        shape: output features N and input features K.
        num_bytes: memory of weight and bias in bytes, padding included.
        free: the library's function that frees the struct.
    """

    def __init__(
        self, op: str, address: int, shape: tuple[int, int], num_bytes: int, free: Callable[[int], object]
    ) -> None:
        self.op = op
        self.address = address
        self.num_out, self.num_in = shape
        self.num_bytes = num_bytes
        finalizer = weakref.finalize(self, free, address)
        finalizer.atexit = False  # a process that ends gives its memory back faster by itself


def pack_linear(pool: Pool, weight: Tensor, bias: Tensor | None) -> CpuLinear:
    """Implement `Ops.pack_linear`."""
    check_dims("weight", weight, 2)
    num_out, num_in = weight.shape
    is_bfloat16 = weight.dtype is torch.bfloat16
    weight = whole("weight", weight, (num_out, num_in), torch.bfloat16 if is_bfloat16 else torch.float32)
    bias = None if bias is None else whole("bias", bias.float(), (num_out,))
    sources = (weight.data_ptr(), None if bias is None else bias.data_ptr())
    library = pool.library
    address = library.pack_linear(pool.address(), *sources, num_out, num_in, is_bfloat16)
    if not address:
        raise MemoryError(f"no memory for a packed weight of shape {(num_out, num_in)}")
    shape = (num_out, num_in)
    return CpuLinear("linear", address, shape, library.linear_bytes(address), library.free_linear)


def embed_packed(pool: Pool, packed: PackedLinear, token_ids: Tensor, multiplier: float) -> Tensor:
    """Implement `Ops.embed` for an embedding that is a packed linear layer."""
    assert isinstance(packed, CpuLinear), "packed by another implementation"
    assert packed.op == "linear", "integers are not what was packed"
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
    pool.call(packed.op, num_rows, packed.address, x.data_ptr(), x.stride(0), out.data_ptr())
    return out
