"""What conv_prefill, selective_scan and ssd_scan have in common: slots, chunks, and equality of bits."""

from itertools import combinations

import pytest
import torch
from kernels_cases import (
    STATE_OPS,
    ChunkOf,
    StateOp,
    inside_nan,
    joined,
    make_chunks,
    part,
    prompt_chunks,
    same_bytes,
)
from torch import Tensor

from mambad.kernels.ops import Ops

CHUNK_LENGTHS = (64, 1, 2, 64, 1, 17)

pytestmark = pytest.mark.parametrize("op", STATE_OPS, ids=lambda op: op.name)


def run_in_calls(ops: Ops, op: StateOp, call_ends: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Prefill one prompt of CHUNK_LENGTHS in slot 1, a new call after each of call_ends (in chunks)."""
    chunks = prompt_chunks(CHUNK_LENGTHS, 1)
    tokens = op.tokens(sum(CHUNK_LENGTHS))
    states = op.states(1)
    outputs = []
    first = num_done = 0
    for last in (*call_ends, len(chunks)):
        num_tokens = sum(CHUNK_LENGTHS[first:last])
        call = part(tokens, num_done, num_done + num_tokens)
        outputs.append(op.prefill(ops, call, states, make_chunks(*chunks[first:last])))
        first, num_done = last, num_done + num_tokens
    return torch.cat(outputs), states


def test_whole_prompt_equals_every_split_at_cuts_bit_for_bit(ops: Ops, op: StateOp) -> None:
    output, states = run_in_calls(ops, op, ())
    inner = range(1, len(CHUNK_LENGTHS))
    splits = [ends for count in range(1, len(CHUNK_LENGTHS)) for ends in combinations(inner, count)]
    assert len(splits) == 31
    for ends in splits:
        split_output, split_states = run_in_calls(ops, op, ends)
        assert same_bytes(split_output, output), ends
        assert same_bytes(split_states, states), ends


def test_chunk_alone_equals_chunk_packed_among_others_bit_for_bit(ops: Ops, op: StateOp) -> None:
    lengths = (7, 64, 1, 33, 2, 16, 3)
    calls = [op.tokens(length, seed=length) for length in lengths]
    chunks = [
        ChunkOf(length, index + 1 if index % 2 else None, index + 1) for index, length in enumerate(lengths)
    ]
    alone_outputs = []
    alone_states = op.states(len(lengths))
    for call, chunk in zip(calls, chunks, strict=True):
        alone_outputs.append(op.prefill(ops, call, alone_states, make_chunks(chunk)))
    for order in (range(7), range(6, -1, -1), (3, 0, 6, 2, 5, 1, 4)):
        states = op.states(len(lengths))
        packed = make_chunks(*(chunks[index] for index in order))
        output = op.prefill(ops, joined(*(calls[index] for index in order)), states, packed)
        assert same_bytes(output, torch.cat([alone_outputs[index] for index in order]))
        assert same_bytes(states, alone_states)


def test_fresh_chunk_does_not_read_its_slot(ops: Ops, op: StateOp) -> None:
    tokens = op.tokens(9)
    results = []
    for poison in (0.0, torch.nan):
        states = op.states(2)
        states[2] = poison
        chunk = ChunkOf(9, None, 1, poisoned_read=2)
        results.append((op.prefill(ops, tokens, states, make_chunks(chunk)), states[1]))
    assert results[0][0].isfinite().all()
    assert same_bytes(results[0][0], results[1][0])
    assert same_bytes(results[0][1], results[1][1])


def test_fresh_chunk_may_overwrite_the_poisoned_slot_it_names(ops: Ops, op: StateOp) -> None:
    tokens = op.tokens(9)
    states = op.states(2)
    states[2] = torch.nan
    expected = op.prefill(ops, tokens, states, make_chunks(ChunkOf(9, None, 1)))
    output = op.prefill(ops, tokens, states, make_chunks(ChunkOf(9, None, 2, poisoned_read=2)))
    assert same_bytes(output, expected)
    assert same_bytes(states[2], states[1])


def test_checkpoint_receives_the_bytes_of_the_written_slot(ops: Ops, op: StateOp) -> None:
    states = op.states(5)
    before = states.clone()
    chunks = make_chunks(ChunkOf(2, 1, 1, checkpoint=2), ChunkOf(30, 1, 1, checkpoint=3), ChunkOf(5, 1, 1))
    op.prefill(ops, op.tokens(37), states, chunks)
    for slot, num_tokens in ((2, 2), (3, 32)):
        alone = before.clone()
        lengths = (2, 30) if num_tokens == 32 else (2,)
        chunks = make_chunks(*prompt_chunks(lengths, 1, is_continued=True))
        op.prefill(ops, part(op.tokens(37), 0, num_tokens), alone, chunks)
        assert same_bytes(states[slot], alone[1])
    assert same_bytes(states[4:], before[4:])


def test_checkpoint_is_written_without_a_written_slot(ops: Ops, op: StateOp) -> None:
    states = op.states(3)
    before = states.clone()
    op.prefill(ops, op.tokens(5), states, make_chunks(ChunkOf(5, 1, 2)))
    op.prefill(ops, op.tokens(5), states, make_chunks(ChunkOf(5, 1, 0, checkpoint=3)))
    assert same_bytes(states[3], states[2])
    assert same_bytes(states[:2], before[:2])


def test_chunk_that_writes_nowhere_changes_no_state(ops: Ops, op: StateOp) -> None:
    states = op.states(2)
    before = states.clone()
    output = op.prefill(ops, op.tokens(5), states, make_chunks(ChunkOf(5, 1, 0)))
    assert output.isfinite().all()
    assert same_bytes(states, before)


def test_poisoned_null_slot_and_free_slots_stay_as_they_are(ops: Ops, op: StateOp) -> None:
    states = op.states(6)
    states[torch.tensor([0, 2, 4, 6])] = torch.nan
    before = states.clone()
    chunks = make_chunks(ChunkOf(3, 1, 1), ChunkOf(1, None, 3), ChunkOf(20, 5, 5))
    output = op.prefill(ops, op.tokens(24), states, chunks)
    assert output.isfinite().all()
    for slot in (0, 2, 4, 6):
        assert same_bytes(states[slot], before[slot])
    for slot in (1, 3, 5):
        assert states[slot].isfinite().all()
        assert not same_bytes(states[slot], before[slot])


def test_two_chunks_fork_from_one_slot_that_stays_as_it_was(ops: Ops, op: StateOp) -> None:
    states = op.states(3)
    before = states.clone()
    tokens = op.tokens(11)
    chunks = make_chunks(ChunkOf(11, 1, 2), ChunkOf(11, 1, 3))
    output = op.prefill(ops, joined(tokens, tokens), states, chunks)
    assert same_bytes(output[:11], output[11:])
    assert same_bytes(states[2], states[3])
    assert same_bytes(states[1], before[1])


def test_later_chunk_reads_what_an_earlier_one_of_the_call_checkpointed(ops: Ops, op: StateOp) -> None:
    tokens = op.tokens(20)
    states = op.states(3)
    output = op.prefill(
        ops, tokens, states, make_chunks(ChunkOf(12, None, 1, checkpoint=2), ChunkOf(8, 2, 3))
    )
    expected_states = op.states(3)
    expected = op.prefill(ops, tokens, expected_states, make_chunks(*prompt_chunks((12, 8), 1)))
    assert same_bytes(output, expected)
    assert same_bytes(states[3], expected_states[1])


def test_strided_inputs_give_the_bytes_of_packed_ones(ops: Ops, op: StateOp) -> None:
    tokens = op.tokens(36)
    chunks = make_chunks(*prompt_chunks((3, 33), 1, is_continued=True))
    states, strided_states = op.states(1), op.states(1)
    output = op.prefill(ops, tokens, states, chunks)
    strided = tuple(inside_nan(tensor) for tensor in tokens)
    strided_output = op.prefill(ops, strided, strided_states, chunks)
    assert same_bytes(strided_output, output)
    assert same_bytes(strided_states, states)
    assert strided_output.is_contiguous()
