"""Inputs and comparisons for the kernel tests: state ops in several sizes, chunk lists, NaN borders.

Owns no expectation about any single op: those are in the test files, the arithmetic in `kernels_oracle`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import kernels_oracle
import torch
from torch import Tensor

from mambad.kernels.chunks import Chunks
from mambad.kernels.ops import Ops

Tokens = tuple[Tensor, ...]
"""The activations of one call, each with tokens (or rows) first."""


@dataclass(frozen=True, slots=True)
class ChunkOf:
    """One chunk of a call as a test writes it; `read` None starts from zero at `poisoned_read`."""

    length: int
    read: int | None
    write: int
    checkpoint: int = 0
    poisoned_read: int = 0


@dataclass(frozen=True, slots=True)
class StateOp:
    """A prefill op and its update twin in one size, with fixed weights.

    Attributes:
        name: shown in the test's id.
        slot_shape: shape of one slot's state.
        token_shapes: shape of one token in each activation.
        prefill: (ops, tokens, states, chunks) -> outputs.
        update: (ops, tokens, states, read_slots, write_slots) -> outputs.
        oracle: (tokens, state) -> outputs and state, in float64.
        state_dtype: of the states.
    """

    name: str
    slot_shape: tuple[int, ...]
    token_shapes: tuple[tuple[int, ...], ...]
    prefill: Callable[[Ops, Tokens, Tensor, Chunks], Tensor]
    update: Callable[[Ops, Tokens, Tensor, Tensor, Tensor], Tensor]
    oracle: Callable[[Tokens, Tensor], tuple[Tensor, Tensor]]
    state_dtype: torch.dtype = torch.float32

    def tokens(self, num_tokens: int, seed: int = 0) -> Tokens:
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randn(num_tokens, *shape, generator=generator) for shape in self.token_shapes)

    def states(self, num_slots: int, seed: int = 1) -> Tensor:
        """Return random states for slots 1..num_slots; slot 0 is NaN."""
        generator = torch.Generator().manual_seed(seed)
        states = torch.randn(num_slots + 1, *self.slot_shape, generator=generator)
        states[0] = torch.nan
        return states.to(self.state_dtype)

    def tolerance(self, num_tokens: int, num_writes: int) -> float:
        """Return the bound on relative_error after num_tokens tokens and num_writes writes of the state."""
        rounding = 2.0**-8 if self.state_dtype is torch.bfloat16 else 0.0
        return tolerance(num_tokens) + rounding * num_writes**0.5


def with_bfloat16_state(op: StateOp) -> StateOp:
    return replace(op, name=f"{op.name}-bfloat16", state_dtype=torch.bfloat16)


def conv_op(num_channels: int, width: int, *, has_bias: bool = True) -> StateOp:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(num_channels, width, generator=generator) / width**0.5
    bias = torch.randn(num_channels, generator=generator) if has_bias else None
    weight64, bias64 = weight.double(), None if bias is None else bias.double()
    return StateOp(
        f"conv-D{num_channels}-K{width}{'-bias' if has_bias else ''}",
        (width - 1, num_channels),
        ((num_channels,),),
        lambda ops, tokens, states, chunks: ops.conv_prefill(*tokens, weight, bias, states, chunks),
        lambda ops, tokens, states, *slots: ops.conv_update(*tokens, weight, bias, states, *slots),
        lambda tokens, state: kernels_oracle.conv(*tokens, weight64, bias64, state),
    )


def scan_op(num_channels: int, state_size: int) -> StateOp:
    generator = torch.Generator().manual_seed(3)
    A = -torch.exp(torch.rand(state_size, num_channels, generator=generator) * 3 - 1)
    D, dt_bias = torch.randn(2, num_channels, generator=generator).unbind()
    dt_bias = dt_bias - 2

    def arguments(tokens: Tokens) -> Tokens:
        x, dt, B, C, z = tokens
        return (x, dt, A, B, C, D, z, dt_bias)

    return StateOp(
        f"scan-E{num_channels}-N{state_size}",
        (state_size, num_channels),
        ((num_channels,), (num_channels,), (state_size,), (state_size,), (num_channels,)),
        lambda ops, tokens, states, chunks: ops.selective_scan(*arguments(tokens), states, chunks),
        lambda ops, tokens, states, *slots: ops.selective_state_update(*arguments(tokens), states, *slots),
        lambda tokens, state: kernels_oracle.selective_scan(*in_float64(arguments(tokens)), state),
    )


def ssd_op(
    num_heads: int,
    head_size: int,
    num_groups: int,
    state_size: int,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
) -> StateOp:
    generator = torch.Generator().manual_seed(4)
    A = -torch.exp(torch.rand(num_heads, generator=generator) * 3 - 1)
    D, dt_bias = torch.randn(2, num_heads, generator=generator).unbind()
    dt_bias = dt_bias - 2

    def arguments(tokens: Tokens) -> Tokens:
        x, dt, B, C = tokens
        return (x, dt, A, B, C, D, dt_bias)

    return StateOp(
        f"ssd-H{num_heads}-P{head_size}-G{num_groups}-N{state_size}",
        (num_heads, head_size, state_size),
        ((num_heads, head_size), (num_heads,), (num_groups, state_size), (num_groups, state_size)),
        lambda ops, tokens, states, chunks: ops.ssd_scan(*arguments(tokens), dt_limit, states, chunks),
        lambda ops, tokens, states, *slots: ops.ssd_state_update(
            *arguments(tokens), dt_limit, states, *slots
        ),
        lambda tokens, state: kernels_oracle.ssd(*in_float64(arguments(tokens)), dt_limit, state),
    )


STATE_OPS = (
    conv_op(24, 4),
    conv_op(3, 5, has_bias=False),
    scan_op(24, 16),
    scan_op(3, 5),
    ssd_op(3, 8, 1, 16),
    ssd_op(6, 5, 2, 5),
    *(
        with_bfloat16_state(op)
        for op in (scan_op(24, 16), scan_op(3, 5), ssd_op(3, 8, 1, 16), ssd_op(6, 40, 2, 5))
    ),
)
"""One ordinary and one odd size of each, for what all state ops have in common."""


def make_chunks(*chunks: ChunkOf) -> Chunks:
    reads = [chunk.poisoned_read if chunk.read is None else chunk.read for chunk in chunks]
    return Chunks(
        starts=int32(0, *accumulate(chunk.length for chunk in chunks)),
        read_slots=int32(*reads),
        write_slots=int32(*(chunk.write for chunk in chunks)),
        checkpoint_slots=int32(*(chunk.checkpoint for chunk in chunks)),
        has_initial_state=torch.tensor([chunk.read is not None for chunk in chunks]),
    )


def prompt_chunks(lengths: Sequence[int], slot: int, *, is_continued: bool = False) -> list[ChunkOf]:
    """Return the chunks of one prompt in `slot`; the first starts from zero unless is_continued."""
    return [
        ChunkOf(length, slot if is_continued or index else None, slot) for index, length in enumerate(lengths)
    ]


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def in_float64(tensors: Tokens) -> Tokens:
    return tuple(tensor.double() for tensor in tensors)


def part(tokens: Tokens, start: int, end: int) -> Tokens:
    """Return tokens [start, end) as tensors of their own."""
    return tuple(tensor[start:end].clone() for tensor in tokens)


def joined(*calls: Tokens) -> Tokens:
    return tuple(torch.cat(tensors) for tensors in zip(*calls, strict=True))


def inside_nan(tensor: Tensor) -> Tensor:
    """Return an equal view whose rows lie between NaNs, at an odd stride and alignment."""
    row_size = tensor[0].numel()
    border = torch.full((tensor.shape[0] + 2, row_size + 7), torch.nan)
    view = border[1:-1, 3 : 3 + row_size].unflatten(1, tensor.shape[1:])
    view.copy_(tensor)
    return view


def same_bytes(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors agree bit for bit, NaN and the sign of zero included."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    bits = torch.int16 if left.dtype is torch.bfloat16 else torch.int32
    return torch.equal(left.view(bits), right.view(bits))


def relative_error(result: Tensor, oracle: Tensor) -> float:
    """Return the largest absolute error over the largest value of the float64 oracle; NaN counts as inf."""
    error = (result.double() - oracle).abs().max() / oracle.abs().max()
    return float("inf") if error.isnan() else float(error)


def tolerance(num_tokens: int) -> float:
    """Return the bound on relative_error of a float32 recurrence over num_tokens tokens."""
    return 1e-6 * max(num_tokens, 4) ** 0.5
