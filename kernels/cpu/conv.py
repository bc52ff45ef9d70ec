"""Causal depthwise convolution on the C library."""

from ctypes import byref

from torch import Tensor

from mambad.kernels.chunks import Chunks
from mambad.kernels.cpu.arguments import check_dims, chunks_argument, in_place, indices, new, rows, whole
from mambad.kernels.cpu.pool import Pool


def conv_prefill(
    pool: Pool, x: Tensor, weight: Tensor, bias: Tensor | None, conv_state: Tensor, chunks: Chunks
) -> Tensor:
    """Implement `Ops.conv_prefill`."""
    where, _kept = chunks_argument(chunks)
    return _call(pool, "conv_prefill", (x, weight, bias, conv_state), byref(where))


def conv_update(
    pool: Pool,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_state: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
) -> Tensor:
    """Implement `Ops.conv_update`."""
    shape = (x.shape[0],)
    reads, writes = indices("read_slots", read_slots, shape), indices("write_slots", write_slots, shape)
    tensors = (x, weight, bias, conv_state)
    return _call(pool, "conv_update", tensors, reads.data_ptr(), writes.data_ptr())


def _call(
    pool: Pool, op: str, tensors: tuple[Tensor, Tensor, Tensor | None, Tensor], *where: object
) -> Tensor:
    x, weight, bias, conv_state = tensors
    check_dims("x", x, 2)
    check_dims("weight", weight, 2)
    shape = num_tokens, num_channels = x.shape
    kernel_width, num_slots = weight.shape[1], conv_state.shape[0]
    x = rows("x", x, shape)
    weight = whole("weight", weight, (num_channels, kernel_width))
    bias = None if bias is None else whole("bias", bias, (num_channels,))
    state = in_place("conv_state", conv_state, (num_slots, kernel_width - 1, num_channels))
    out = new(shape)
    sources = (x.data_ptr(), x.stride(0), weight.data_ptr(), None if bias is None else bias.data_ptr())
    sizes = (num_tokens, num_channels, kernel_width, num_slots)
    pool.call(op, *sources, state, out.data_ptr(), *sizes, *where)
    return out
