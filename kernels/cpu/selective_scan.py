"""Mamba-1's recurrence on the C library.

`tensors` is (x, dt, A, B, C, D, z, dt_bias, ssm_state) throughout.
"""

from ctypes import Structure

from torch import Tensor

from mambad.kernels.chunks import Chunks
from mambad.kernels.cpu.arguments import (
    check_dims,
    chunks_argument,
    rows,
    rows_argument,
    state_in_place,
    whole,
)
from mambad.kernels.cpu.pool import Pool
from mambad.kernels.cpu.state_calls import Selective


def selective_scan(pool: Pool, tensors: tuple[Tensor, ...], chunks: Chunks) -> Tensor:
    """Implement `Ops.selective_scan`."""
    where, _kept = chunks_argument(chunks)
    return _call(pool, "selective_scan", tensors, where)


def selective_state_update(
    pool: Pool, tensors: tuple[Tensor, ...], read_slots: Tensor, write_slots: Tensor
) -> Tensor:
    """Implement `Ops.selective_state_update`."""
    where, _kept = rows_argument(tensors[0].shape[0], read_slots, write_slots)
    return _call(pool, "selective_state_update", tensors, where)


def _call(pool: Pool, op: str, tensors: tuple[Tensor, ...], where: Structure) -> Tensor:
    x, dt, A, B, C, D, z, dt_bias, ssm_state = tensors
    check_dims("x", x, 2)
    check_dims("A", A, 2)
    shape = num_tokens, num_channels = x.shape
    state_size, num_slots = A.shape[0], ssm_state.shape[0]
    x, dt, z = rows("x", x, shape), rows("dt", dt, shape), rows("z", z, shape)
    B, C = rows("B", B, (num_tokens, state_size)), rows("C", C, (num_tokens, state_size))
    A = whole("A", A, (state_size, num_channels))
    D, dt_bias = whole("D", D, (num_channels,)), whole("dt_bias", dt_bias, (num_channels,))
    state = state_in_place("ssm_state", ssm_state, (num_slots, state_size, num_channels))
    out = pool.new(shape)
    selective = Selective(
        num_tokens,
        *(x.data_ptr(), x.stride(0), dt.data_ptr(), dt.stride(0), A.data_ptr()),
        *(B.data_ptr(), B.stride(0), C.data_ptr(), C.stride(0), D.data_ptr()),
        *(z.data_ptr(), z.stride(0), dt_bias.data_ptr(), *state, out.data_ptr()),
        *(num_channels, state_size, num_slots),
    )
    pool.call(op, selective, where)
    return out
