"""What conv_update, selective_state_update and ssd_state_update have in common: rows, slots, padding."""

import pytest
import torch
from kernels_cases import (
    STATE_OPS,
    StateOp,
    in_float64,
    inside_nan,
    int32,
    make_chunks,
    part,
    prompt_chunks,
    relative_error,
    same_bytes,
    tolerance,
)

from mambad.kernels.ops import Ops

pytestmark = pytest.mark.parametrize("op", STATE_OPS, ids=lambda op: op.name)


@pytest.mark.parametrize("num_rows", [2, 7, 32])
def test_row_alone_equals_row_at_any_position_of_a_batch_bit_for_bit(
    ops: Ops, op: StateOp, num_rows: int
) -> None:
    alone_states = op.states(40)
    alone_output = op.update(ops, op.tokens(1, seed=99), alone_states, int32(40), int32(40))
    for position in range(num_rows):
        tokens = op.tokens(num_rows)
        for tensor, alone in zip(tokens, op.tokens(1, seed=99), strict=True):
            tensor[position] = alone[0]
        slots = torch.arange(1, num_rows + 1, dtype=torch.int32)
        slots[position] = 40
        states = op.states(40)
        output = op.update(ops, tokens, states, slots, slots)
        assert same_bytes(output[position], alone_output[0])
        assert same_bytes(states[40], alone_states[40])


def test_padding_rows_give_zero_and_touch_no_state(ops: Ops, op: StateOp) -> None:
    tokens = op.tokens(5)
    for tensor in tokens:
        tensor[torch.tensor([1, 4])] = torch.nan
    states = op.states(6)
    states[torch.tensor([0, 2, 6])] = torch.nan
    before = states.clone()
    output = op.update(ops, tokens, states, int32(1, 0, 3, 4, 2), int32(1, 0, 3, 4, 0))
    assert (output[torch.tensor([1, 4])] == 0).all()
    assert output[torch.tensor([0, 2, 3])].isfinite().all()
    assert (output[0] != 0).any()
    for slot in (0, 2, 5, 6):
        assert same_bytes(states[slot], before[slot])
    for slot in (1, 3, 4):
        assert not same_bytes(states[slot], before[slot])


def test_padded_batch_equals_unpadded_batch_bit_for_bit(ops: Ops, op: StateOp) -> None:
    states, padded_states = op.states(3), op.states(3)
    output = op.update(ops, op.tokens(3), states, int32(3, 1, 2), int32(3, 1, 2))
    padded = tuple(torch.cat((tensor, torch.zeros_like(tensor))) for tensor in op.tokens(3))
    slots = int32(3, 1, 2, 0, 0, 0)
    padded_output = op.update(ops, padded, padded_states, slots, slots)
    assert same_bytes(padded_output[:3], output)
    assert same_bytes(padded_states, states)


def test_row_reads_one_slot_and_writes_another(ops: Ops, op: StateOp) -> None:
    tokens = op.tokens(1)
    states = op.states(3)
    before = states.clone()
    states[2] = torch.nan
    output = op.update(ops, tokens, states, int32(1), int32(2))
    in_place = before.clone()
    assert same_bytes(output, op.update(ops, tokens, in_place, int32(1), int32(1)))
    assert same_bytes(states[2], in_place[1])
    assert same_bytes(states[1], before[1])
    assert same_bytes(states[3], before[3])


def test_strided_rows_give_the_bytes_of_packed_ones(ops: Ops, op: StateOp) -> None:
    states, strided_states = op.states(4), op.states(4)
    slots = int32(2, 4, 1)
    output = op.update(ops, op.tokens(3), states, slots, slots)
    strided = tuple(inside_nan(tensor) for tensor in op.tokens(3))
    strided_output = op.update(ops, strided, strided_states, slots, slots)
    assert same_bytes(strided_output, output)
    assert same_bytes(strided_states, states)
    assert strided_output.is_contiguous()


def test_prefill_then_token_by_token_agrees_with_float64(ops: Ops, op: StateOp) -> None:
    tokens = op.tokens(30)
    states = op.states(1)
    outputs = [op.prefill(ops, part(tokens, 0, 10), states, make_chunks(*prompt_chunks((1, 9), 1)))]
    outputs += [op.update(ops, part(tokens, t, t + 1), states, int32(1), int32(1)) for t in range(10, 30)]
    expected, expected_state = op.oracle(in_float64(tokens), torch.zeros(op.slot_shape, dtype=torch.float64))
    assert relative_error(torch.cat(outputs), expected) < op.tolerance(30, 22)
    assert relative_error(states[1], expected_state) < op.tolerance(30, 22)


def test_prefill_and_update_agree_on_one_token(ops: Ops, op: StateOp) -> None:
    tokens = op.tokens(1)
    states, prefill_states = op.states(1), op.states(1)
    output = op.update(ops, tokens, states, int32(1), int32(1))
    chunks = make_chunks(*prompt_chunks((1,), 1, is_continued=True))
    expected = op.prefill(ops, tokens, prefill_states, chunks)
    assert relative_error(output, expected.double()) < tolerance(1)
    assert relative_error(states[1], prefill_states[1].double()) < op.tolerance(1, 1)
