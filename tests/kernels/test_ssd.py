"""Mamba-2's scan against the float64 loop, in odd sizes, with hard decays and clamped steps."""

import pytest
import torch
from kernels_cases import (
    ChunkOf,
    StateOp,
    in_float64,
    int32,
    make_chunks,
    prompt_chunks,
    relative_error,
    ssd_op,
    tolerance,
)
from torch import Tensor

from mambad.kernels.ops import Ops


def assert_agrees_with_float64(
    ops: Ops, op: StateOp, tokens: tuple[Tensor, ...], lengths: tuple[int, ...], *, is_continued: bool
) -> None:
    states = op.states(1)
    initial = states[1].double() if is_continued else torch.zeros(op.slot_shape, dtype=torch.float64)
    expected, expected_state = op.oracle(in_float64(tokens), initial)
    chunks = make_chunks(*prompt_chunks(lengths, 1, is_continued=is_continued))
    output = op.prefill(ops, tokens, states, chunks)
    assert relative_error(output, expected) < tolerance(sum(lengths))
    assert relative_error(states[1], expected_state) < tolerance(sum(lengths))


@pytest.mark.parametrize("is_continued", [True, False])
@pytest.mark.parametrize("lengths", [(1,), (2, 1), (64, 1, 2, 30)])
@pytest.mark.parametrize(
    ("num_heads", "head_size", "num_groups", "state_size"),
    [(1, 1, 1, 1), (3, 24, 1, 16), (4, 5, 2, 5), (6, 3, 2, 16), (2, 40, 2, 1), (2, 64, 1, 128)],
)
def test_ssd_agrees_with_float64_loop(
    ops: Ops,
    num_heads: int,
    head_size: int,
    num_groups: int,
    state_size: int,
    lengths: tuple[int, ...],
    is_continued: bool,
) -> None:
    op = ssd_op(num_heads, head_size, num_groups, state_size)
    assert_agrees_with_float64(ops, op, op.tokens(sum(lengths)), lengths, is_continued=is_continued)


@pytest.mark.parametrize("length", range(1, 65))
def test_ssd_of_every_chunk_length_agrees_with_float64_loop(ops: Ops, length: int) -> None:
    op = ssd_op(2, 5, 1, 5)
    assert_agrees_with_float64(ops, op, op.tokens(length), (length,), is_continued=True)


@pytest.mark.parametrize("value", [-1e4, -100.0, -30.0, 0.0, 8.0, 19.9, 20.1, 100.0])
def test_step_size_at_the_ends_of_softplus_agrees_with_float64(ops: Ops, value: float) -> None:
    op = ssd_op(4, 5, 2, 5)
    x, dt, B, C = op.tokens(40)
    dt = torch.where(torch.arange(40)[:, None] % 3 == 0, torch.full_like(dt, value), dt)
    assert_agrees_with_float64(ops, op, (x, dt, B, C), (40,), is_continued=True)


def test_weak_token_after_a_hard_decay_keeps_its_precision(ops: Ops) -> None:
    op = ssd_op(2, 5, 1, 5)
    x, dt, B, C = op.tokens(64)
    dt[:32] = 200.0
    dt[32:] = -6.0
    assert_agrees_with_float64(ops, op, (x, dt, B, C), (64,), is_continued=True)


@pytest.mark.parametrize("dt_limit", [(0.3, float("inf")), (0.0, 0.05), (0.05, 0.1)])
def test_steps_are_clamped_to_their_limits(ops: Ops, dt_limit: tuple[float, float]) -> None:
    op = ssd_op(3, 8, 1, 16, dt_limit)
    assert_agrees_with_float64(ops, op, op.tokens(20), (20,), is_continued=True)
    tokens, states = op.tokens(1), op.states(1)
    expected, expected_state = op.oracle(in_float64(tokens), states[1].double())
    assert relative_error(op.update(ops, tokens, states, int32(1), int32(1)), expected) < tolerance(1)
    assert relative_error(states[1], expected_state) < tolerance(1)


def test_heads_of_a_group_are_neighbours(ops: Ops) -> None:
    B = torch.tensor([[[1.0], [2.0]]])
    ones = torch.ones(1, 4, 1)
    states = torch.zeros(2, 4, 1, 1)
    zeros = torch.zeros(4)
    arguments = (ones, torch.zeros(1, 4), -torch.ones(4), B, torch.ones(1, 2, 1), zeros, zeros, (1.0, 1.0))
    ops.ssd_scan(*arguments, states, make_chunks(ChunkOf(1, None, 1)))
    assert states[1].flatten().tolist() == [1.0, 1.0, 2.0, 2.0]
    states.zero_()
    ops.ssd_state_update(*arguments, states, int32(1), int32(1))
    assert states[1].flatten().tolist() == [1.0, 1.0, 2.0, 2.0]
