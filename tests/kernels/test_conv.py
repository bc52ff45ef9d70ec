"""The convolution's own cases: widths, chunks shorter than the window, and the float64 loop."""

import pytest
import torch
from kernels_cases import (
    ChunkOf,
    conv_op,
    in_float64,
    int32,
    make_chunks,
    part,
    prompt_chunks,
    relative_error,
    same_bytes,
    tolerance,
)

from mambad.kernels.ops import Ops


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("width", [2, 3, 4, 5])
@pytest.mark.parametrize("num_channels", [1, 3, 24, 40])
def test_conv_agrees_with_float64_loop(ops: Ops, num_channels: int, width: int, has_bias: bool) -> None:
    op = conv_op(num_channels, width, has_bias=has_bias)
    for lengths in ((1,), (2, 1), (64, 1, 2, 30)):
        for is_continued in (False, True):
            tokens, states = op.tokens(sum(lengths)), op.states(1)
            initial = states[1].double() if is_continued else torch.zeros(op.slot_shape, dtype=torch.float64)
            expected, expected_state = op.oracle(in_float64(tokens), initial)
            chunks = make_chunks(*prompt_chunks(lengths, 1, is_continued=is_continued))
            output = op.prefill(ops, tokens, states, chunks)
            assert relative_error(output, expected) < tolerance(1)
            assert torch.equal(states[1].double(), expected_state)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_chunk_shorter_than_the_window_shifts_the_older_rows(ops: Ops, length: int) -> None:
    op = conv_op(3, 5)
    tokens, states = op.tokens(length), op.states(2)
    before = states[1].clone()
    op.prefill(ops, tokens, states, make_chunks(ChunkOf(length, 1, 2)))
    assert same_bytes(states[2], torch.cat((before[length:], tokens[0])))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_fresh_chunk_shorter_than_the_window_leaves_zeros_before_the_beginning(ops: Ops, length: int) -> None:
    op = conv_op(3, 5)
    tokens, states = op.tokens(length), op.states(1)
    op.prefill(ops, tokens, states, make_chunks(ChunkOf(length, None, 1, poisoned_read=0)))
    assert torch.equal(states[1], torch.cat((torch.zeros(4 - length, 3), tokens[0])))


def test_short_chunks_after_a_cut_equal_one_long_chunk_bit_for_bit(ops: Ops) -> None:
    op = conv_op(24, 4)
    tokens = op.tokens(9)
    states, cut_states = op.states(1), op.states(1)
    output = op.prefill(ops, tokens, states, make_chunks(*prompt_chunks((9,), 1)))
    outputs = []
    done = 0
    for length in (1, 1, 2, 1, 4):
        chunks = make_chunks(ChunkOf(length, 1 if done else None, 1))
        outputs.append(op.prefill(ops, part(tokens, done, done + length), cut_states, chunks))
        done += length
    assert relative_error(torch.cat(outputs), output.double()) < tolerance(1)
    assert same_bytes(cut_states, states)


def test_newest_tap_multiplies_the_newest_token(ops: Ops) -> None:
    weight = torch.tensor([[0.0, 0.0, 1.0]])
    state = torch.full((2, 2, 1), 5.0)
    output = ops.conv_update(torch.full((1, 1), 30.0), weight, None, state, int32(1), int32(1))
    assert output.item() == pytest.approx(30.0)
    assert state[1].flatten().tolist() == [5.0, 30.0]


def test_large_inputs_saturate_without_nan(ops: Ops) -> None:
    weight = torch.tensor([[0.0, 1.0]])
    x = torch.tensor([[-1e4], [-100.0], [-88.5], [0.0], [88.5], [1e4]])
    states = torch.zeros(2, 1, 1)
    output = ops.conv_prefill(x, weight, None, states, make_chunks(ChunkOf(6, None, 1)))
    assert output[3:].flatten().tolist() == pytest.approx([0.0, 88.5, 1e4])
    assert output[:3].abs().max() < 1e-30
