"""Input buffers: every element of the padded size is rewritten, spans become chunks."""

import pytest
import torch
from torch import Tensor

from mambad.engine.batch import TOKEN_OF_LAUNCHED_STEP, Batch, DecodeRow, PrefillSpan
from mambad.engine.input_buffers import NUM_SETS, InputBuffers, StepInputs, capture_sizes

SIZES = (1, 2, 4, 8)


def decode_batch(num_rows: int, step_id: int = 1) -> Batch:
    """Rows that carry no 0 anywhere."""
    rows = [DecodeRow(9, slot=i + 1, token_id=i + 10, position=i + 20, sample=None) for i in range(num_rows)]
    return Batch(step_id, decodes=tuple(rows))


def span(slot: int, start: int, chunk_ends: tuple[int, ...], first_token: int = 100) -> PrefillSpan:
    tokens = list(range(first_token, first_token + chunk_ends[-1] - start))
    return PrefillSpan(9, slot, tokens, start, chunk_ends, sample=None)


def decode_tensors(inputs: StepInputs) -> list[Tensor]:
    assert inputs.decode is not None
    return [inputs.decode.token_ids, inputs.decode.positions, inputs.decode.slots]


def poison(buffers: InputBuffers) -> None:
    """Leave garbage in all elements of both sets."""
    for _ in range(NUM_SETS):
        for tensor in decode_tensors(buffers.fill(decode_batch(SIZES[-1]))):
            tensor.fill_(-77)


@pytest.mark.parametrize("num_rows", range(1, 9))
def test_fill_rewrites_every_element_of_the_padded_size_in_all_tensors(num_rows: int) -> None:
    buffers = InputBuffers(SIZES)
    poison(buffers)
    for _ in range(NUM_SETS):
        tokens, positions, slots = decode_tensors(buffers.fill(decode_batch(num_rows)))
        padded = next(size for size in SIZES if size >= num_rows)
        padding = [0] * (padded - num_rows)
        assert tokens.tolist() == [10 + i for i in range(num_rows)] + padding
        assert positions.tolist() == [20 + i for i in range(num_rows)] + padding
        assert slots.tolist() == [1 + i for i in range(num_rows)] + padding


def test_shrinking_batches_leave_nothing_of_the_larger_ones() -> None:
    buffers = InputBuffers(SIZES)
    for num_rows in (8, 7, 6, 5, 5, 3, 3, 2, 1):
        for tensor in decode_tensors(buffers.fill(decode_batch(num_rows))):
            assert not tensor[num_rows:].any()
            assert tensor[:num_rows].all()


def test_dummy_step_is_padding_only() -> None:
    buffers = InputBuffers(SIZES)
    poison(buffers)
    inputs = buffers.fill(Batch(1, is_dummy=True))
    assert inputs.prefill is None
    assert [tensor.tolist() for tensor in decode_tensors(inputs)] == [[0], [0], [0]]


def test_two_sets_are_used_in_turn_at_fixed_addresses() -> None:
    buffers = InputBuffers(SIZES)
    addresses = [
        [tensor.data_ptr() for tensor in decode_tensors(buffers.fill(decode_batch(n)))] for n in (8, 3, 1, 5)
    ]
    assert addresses[0] == addresses[2]
    assert addresses[1] == addresses[3]
    assert not set(addresses[0]) & set(addresses[1])


def test_fill_does_not_disturb_the_step_before() -> None:
    buffers = InputBuffers(SIZES)
    first = decode_tensors(buffers.fill(decode_batch(3)))
    before = [tensor.tolist() for tensor in first]
    buffers.fill(Batch(2, decodes=(DecodeRow(1, 5, TOKEN_OF_LAUNCHED_STEP, 4, None),) * 8))
    assert [tensor.tolist() for tensor in first] == before


def test_more_rows_than_the_buffers_hold_are_refused() -> None:
    with pytest.raises(AssertionError):
        InputBuffers(SIZES).fill(decode_batch(9))


def test_prefill_alone_has_no_decode_path_and_decode_no_prefill() -> None:
    buffers = InputBuffers(SIZES)
    prefill = buffers.fill(Batch(1, prefills=(span(1, 0, (3,)),)))
    assert prefill.decode is None
    assert prefill.prefill is not None
    assert buffers.fill(decode_batch(2)).prefill is None


def test_spans_become_chunks_between_cuts() -> None:
    spans = (span(3, 0, (64, 70, 134)), span(1, 128, (192, 193), first_token=500), span(2, 0, (1,)))
    inputs = InputBuffers(SIZES).fill(Batch(1, prefills=spans)).prefill
    assert inputs is not None
    chunks = inputs.chunks
    assert inputs.token_ids.tolist() == [*range(100, 234), *range(500, 565), 100]
    assert inputs.positions.tolist() == [*range(134), *range(128, 193), 0]
    assert inputs.table_rows.tolist() == [3] * 134 + [1] * 65 + [2]
    assert chunks.starts.tolist() == [0, 64, 70, 134, 198, 199, 200]
    assert inputs.chunk_positions.tolist() == [0, 64, 70, 128, 192, 0]
    # Only a first chunk at position 0 starts from zero.
    assert chunks.has_initial_state.tolist() == [False, True, True, True, True, False]
    for rows in (inputs.chunk_rows, chunks.read_slots, chunks.write_slots):
        assert rows.tolist() == [3, 3, 3, 1, 1, 2]
    assert chunks.checkpoint_slots.tolist() == [0] * 6


def test_prefill_tensors_have_the_types_that_the_kernels_take() -> None:
    inputs = InputBuffers(SIZES).fill(Batch(1, prefills=(span(1, 64, (100,)),))).prefill
    assert inputs is not None
    chunks = inputs.chunks
    assert inputs.token_ids.dtype == torch.int64
    assert chunks.has_initial_state.dtype == torch.bool
    for tensor in (
        inputs.positions,
        inputs.table_rows,
        inputs.chunk_rows,
        inputs.chunk_positions,
        chunks.starts,
        chunks.read_slots,
        chunks.write_slots,
        chunks.checkpoint_slots,
    ):
        assert tensor.dtype == torch.int32
        assert tensor.is_contiguous()


def test_span_whose_last_chunk_ends_elsewhere_is_refused() -> None:
    broken = PrefillSpan(9, 1, [5, 6, 7], start=0, chunk_ends=(2,), sample=None)
    with pytest.raises(AssertionError):
        InputBuffers(SIZES).fill(Batch(1, prefills=(broken,)))


def test_capture_sizes_grow_by_eight_and_end_at_the_limit() -> None:
    assert capture_sizes(1) == (1,)
    assert capture_sizes(3) == (1, 2, 3)
    assert capture_sizes(8) == (1, 2, 4, 8)
    assert capture_sizes(20) == (1, 2, 4, 8, 16, 20)
    assert capture_sizes(32) == (1, 2, 4, 8, 16, 24, 32)
