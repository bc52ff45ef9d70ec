"""Mamba-1's scan against the float64 loop, in odd sizes and at the edges of its functions."""

import pytest
import torch
from kernels_cases import (
    ChunkOf,
    in_float64,
    int32,
    make_chunks,
    prompt_chunks,
    relative_error,
    scan_op,
    tolerance,
)

from mambad.kernels.ops import Ops


@pytest.mark.parametrize("state_size", [1, 5, 16])
@pytest.mark.parametrize("num_channels", [1, 3, 24, 40])
def test_scan_agrees_with_float64_loop(ops: Ops, num_channels: int, state_size: int) -> None:
    op = scan_op(num_channels, state_size)
    for lengths in ((1,), (2, 1), (64, 1, 2, 64, 30)):
        for is_continued in (False, True):
            tokens, states = op.tokens(sum(lengths)), op.states(1)
            initial = states[1].double() if is_continued else torch.zeros(op.slot_shape, dtype=torch.float64)
            expected, expected_state = op.oracle(in_float64(tokens), initial)
            chunks = make_chunks(*prompt_chunks(lengths, 1, is_continued=is_continued))
            output = op.prefill(ops, tokens, states, chunks)
            assert relative_error(output, expected) < tolerance(sum(lengths))
            assert relative_error(states[1], expected_state) < tolerance(sum(lengths))


@pytest.mark.parametrize("length", range(1, 65))
def test_scan_of_every_chunk_length_agrees_with_float64_loop(ops: Ops, length: int) -> None:
    op = scan_op(3, 5)
    tokens, states = op.tokens(length), op.states(1)
    expected, expected_state = op.oracle(in_float64(tokens), states[1].double())
    output = op.prefill(ops, tokens, states, make_chunks(ChunkOf(length, 1, 1)))
    assert relative_error(output, expected) < tolerance(length)
    assert relative_error(states[1], expected_state) < tolerance(length)


@pytest.mark.parametrize("value", [-1e4, -100.0, -30.0, 8.0, 19.9, 20.1, 100.0, 1e4])
def test_step_size_at_the_ends_of_softplus_agrees_with_float64(ops: Ops, value: float) -> None:
    op = scan_op(24, 16)
    x, dt, B, C, z = op.tokens(6)
    tokens = (x, torch.full_like(dt, value), B, C, z)
    states, row_states = op.states(1), op.states(1)
    expected, expected_state = op.oracle(in_float64(tokens), states[1].double())
    output = op.prefill(ops, tokens, states, make_chunks(ChunkOf(6, 1, 1)))
    assert relative_error(output, expected) < tolerance(6)
    assert relative_error(states[1], expected_state) < tolerance(6)
    first = tuple(tensor[:1] for tensor in tokens)
    row = op.update(ops, first, row_states, int32(1), int32(1))
    assert relative_error(row, expected[:1]) < tolerance(1)


def test_gate_far_below_zero_closes_without_nan(ops: Ops) -> None:
    op = scan_op(3, 5)
    *others, z = op.tokens(4)
    output = op.prefill(ops, (*others, torch.full_like(z, -1e4)), op.states(1), make_chunks(ChunkOf(4, 1, 1)))
    assert output.abs().max() == 0
