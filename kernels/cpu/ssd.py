"""Mamba-2's recurrence on the C library.

`tensors` is (x, dt, A, B, C, D, dt_bias, ssm_state) throughout.
"""

from ctypes import Structure

from torch import Tensor

from mambad.kernels.chunks import Chunks
from mambad.kernels.cpu.arguments import (
    check_dims,
    check_divides,
    chunks_argument,
    rows,
    rows_argument,
    state_in_place,
    whole,
)
from mambad.kernels.cpu.pool import Pool
from mambad.kernels.cpu.state_calls import Ssd


def ssd_scan(
    pool: Pool, tensors: tuple[Tensor, ...], dt_limit: tuple[float, float], chunks: Chunks
) -> Tensor:
    """Implement `Ops.ssd_scan`."""
    where, _kept = chunks_argument(chunks)
    return _call(pool, "ssd_scan", tensors, dt_limit, where)


def ssd_state_update(
    pool: Pool,
    tensors: tuple[Tensor, ...],
    dt_limit: tuple[float, float],
    read_slots: Tensor,
    write_slots: Tensor,
) -> Tensor:
    """Implement `Ops.ssd_state_update`."""
    where, _kept = rows_argument(tensors[0].shape[0], read_slots, write_slots)
    return _call(pool, "ssd_state_update", tensors, dt_limit, where)


def _call(
    pool: Pool, op: str, tensors: tuple[Tensor, ...], dt_limit: tuple[float, float], where: Structure
) -> Tensor:
    x, dt, A, B, C, D, dt_bias, ssm_state = tensors
    check_dims("x", x, 3)
    check_dims("B", B, 3)
    shape = num_tokens, num_heads, head_size = x.shape
    (num_groups, state_size), num_slots = B.shape[1:], ssm_state.shape[0]
    check_divides("number of groups", num_groups, "number of heads", num_heads)
    x, dt = rows("x", x, shape), rows("dt", dt, (num_tokens, num_heads))
    B = rows("B", B, (num_tokens, num_groups, state_size))
    C = rows("C", C, (num_tokens, num_groups, state_size))
    A, D = whole("A", A, (num_heads,)), whole("D", D, (num_heads,))
    dt_bias = whole("dt_bias", dt_bias, (num_heads,))
    state = state_in_place("ssm_state", ssm_state, (num_slots, num_heads, head_size, state_size))
    out = pool.new(shape)
    arguments = Ssd(
        num_tokens,
        *(x.data_ptr(), x.stride(0), dt.data_ptr(), dt.stride(0), A.data_ptr()),
        *(B.data_ptr(), B.stride(0), C.data_ptr(), C.stride(0), D.data_ptr()),
        *(dt_bias.data_ptr(), *dt_limit, *state, out.data_ptr()),
        *(num_heads, head_size, num_groups, state_size, num_slots),
    )
    pool.call(op, arguments, where)
    return out
