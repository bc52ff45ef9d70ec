"""Checks of tensors before their addresses go to C.

Owns dtype, device, shape and layout checks of the CPU kernels' arguments, each of which names the argument
it complains about. What depends on the values of indices is checked in C, where it is cheap.
"""

from typing import NoReturn

import torch
from torch import Tensor

from mambad.kernels.chunks import Chunks
from mambad.kernels.cpu import state_calls


def _complain(name: str, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> NoReturn:
    if x.shape != shape:
        raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {shape}")
    raise ValueError(f"{name} is {x.dtype} on {x.device}, expected {dtype} on cpu")


def check_dims(name: str, x: Tensor, num_dims: int) -> None:
    """Raise ValueError unless x has num_dims dimensions, of which all but the first are not empty."""
    shape = x.shape
    if len(shape) != num_dims or 0 in shape[1:]:
        raise ValueError(f"{name} has shape {tuple(shape)}, expected {num_dims} dimensions, not empty")


def check_divides(divisor_name: str, divisor: int, name: str, value: int) -> None:
    """Raise ValueError unless divisor is positive and value a multiple of it."""
    if divisor < 1 or value % divisor != 0:
        raise ValueError(f"{name} = {value} is not a multiple of {divisor_name} = {divisor}")


def rows(name: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return x, float32 of this shape, with all dimensions but the first packed; copied if need be."""
    if x.dtype is not torch.float32 or x.shape != shape or not x.is_cpu:
        _complain(name, x, shape, torch.float32)
    if x.is_contiguous():
        return x
    strides = x.stride()
    is_packed = strides[-1] == 1 and (len(shape) == 2 or (len(shape) == 3 and strides[1] == shape[2]))
    return x if is_packed else x.contiguous()


def whole(name: str, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return x, of this dtype and shape, contiguous; copied if need be."""
    if x.dtype is not dtype or x.shape != shape or not x.is_cpu:
        _complain(name, x, shape, dtype)
    return x.contiguous()


def indices(name: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return x, int32 of this shape, contiguous; copied if need be."""
    return whole(name, x, shape, torch.int32)


def in_place(name: str, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> int:
    """Return the address of x, of this dtype and shape, which the op changes and which must be contiguous."""
    if x.dtype is not dtype or x.shape != shape or not x.is_cpu:
        _complain(name, x, shape, dtype)
    if not x.is_contiguous():
        raise ValueError(f"{name} is changed in place and must be contiguous")
    return x.data_ptr()


def state_in_place(name: str, x: Tensor, shape: tuple[int, ...]) -> tuple[int, bool]:
    """Return what `in_place` does for a state, float32 or bfloat16, and whether it is bfloat16."""
    is_bfloat16 = x.dtype is torch.bfloat16
    return in_place(name, x, shape, torch.bfloat16 if is_bfloat16 else torch.float32), is_bfloat16


def chunks_argument(chunks: Chunks) -> tuple[state_calls.Chunks, tuple[Tensor, ...]]:
    """Return the C view of chunks and the tensors that must live as long as it does."""
    count = chunks.num_chunks
    kept = (
        indices("starts", chunks.starts, (count + 1,)),
        indices("read_slots", chunks.read_slots, (count,)),
        indices("write_slots", chunks.write_slots, (count,)),
        indices("checkpoint_slots", chunks.checkpoint_slots, (count,)),
        whole("has_initial_state", chunks.has_initial_state, (count,), torch.bool),
    )
    return state_calls.Chunks(count, *(tensor.data_ptr() for tensor in kept)), kept


def rows_argument(
    num_rows: int, read_slots: Tensor, write_slots: Tensor
) -> tuple[state_calls.Rows, tuple[Tensor, ...]]:
    """Return the C view of an update call's slots and the tensors that must live as long as it does."""
    kept = (indices("read_slots", read_slots, (num_rows,)), indices("write_slots", write_slots, (num_rows,)))
    return state_calls.Rows(*(tensor.data_ptr() for tensor in kept)), kept
