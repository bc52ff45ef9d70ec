"""Causal depthwise convolution on the C library."""

from ctypes import Structure

from torch import Tensor

from mambad.kernels.chunks import Chunks
from mambad.kernels.cpu.arguments import (
    check_dims,
    chunks_argument,
    in_place,
    rows,
    rows_argument,
    whole,
)
from mambad.kernels.cpu.pool import Pool
from mambad.kernels.cpu.state_calls import Conv


def conv_prefill(
    pool: Pool, x: Tensor, weight: Tensor, bias: Tensor | None, conv_state: Tensor, chunks: Chunks
) -> Tensor:
    """Implement `Ops.conv_prefill`."""
    where, _kept = chunks_argument(chunks)
    return _call(pool, "conv_prefill", (x, weight, bias, conv_state), where)


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
    where, _kept = rows_argument(x.shape[0], read_slots, write_slots)
    return _call(pool, "conv_update", (x, weight, bias, conv_state), where)


def _call(
    pool: Pool, op: str, tensors: tuple[Tensor, Tensor, Tensor | None, Tensor], where: Structure
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
    out = pool.new(shape)
    sources = (x.data_ptr(), x.stride(0), weight.data_ptr(), None if bias is None else bias.data_ptr())
    sizes = (num_channels, kernel_width, num_slots)
    pool.call(op, Conv(num_tokens, *sources, state, out.data_ptr(), *sizes), where)
    return out
