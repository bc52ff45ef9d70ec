"""The index tensors that one step reads, filled from a batch.

Owns the persistent, padded buffers of the decode path, at fixed addresses as a captured graph needs them.
There are two sets, used in turn, so that one can be filled while a step is executing from the other. Every
fill rewrites all elements of the padded size in every tensor: padding rows carry token 0, position 0 and
slot 0. Prefill tensors are new for each step and exact in size. What is prefill, decode or padding comes
from the batch alone. It does not know the pools' contents and launches nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mambad.engine.batch import Batch, DecodeRow, PrefillSpan
from mambad.engine.model_inputs import DecodeInputs, PrefillInputs
from mambad.kernels.chunks import Chunks

NUM_SETS = 2
"""Sets of decode buffers: a set may be filled again once the step NUM_SETS launches ago has completed."""


def capture_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Return the padded sizes of the decode path: 1, 2, 4, then multiples of 8, the last max_num_seqs."""
    sizes = {size for size in (1, 2, 4, *range(8, max_num_seqs, 8)) if size < max_num_seqs}
    return (*sorted(sizes), max_num_seqs)


@dataclass(frozen=True, slots=True, eq=False)
class StepInputs:
    """What one step computes, as tensors.

    Attributes:
        prefill: all spans of the batch, flat; None without spans.
        decode: views of a padded size into a set of buffers; None when the step has no decode path.
            `token_ids` may hold TOKEN_OF_LAUNCHED_STEP.
    """

    prefill: PrefillInputs | None
    decode: DecodeInputs | None


class InputBuffers:
    """Fills decode buffers of B = the largest capture size, and prefill tensors.

    Host memory is what steps on the CPU read, so there is nothing to copy to a device.

    Args:
        sizes: padded sizes of the decode path, ascending; the last is the most rows a batch can have.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = tuple(sizes)
        self._sets = [_DecodeBuffers(self._sizes) for _ in range(NUM_SETS)]
        self._turn = 0

    def fill(self, batch: Batch) -> StepInputs:
        """Write the batch into the set whose turn it is; the step that read it last must have completed."""
        buffers = self._sets[self._turn]
        self._turn = (self._turn + 1) % NUM_SETS
        has_decode = bool(batch.decodes) or batch.is_dummy
        return StepInputs(
            prefill=_prefill_inputs(batch.prefills) if batch.prefills else None,
            decode=self._fill_decode(buffers, batch.decodes, batch.min_decode_rows) if has_decode else None,
        )

    def _fill_decode(
        self, buffers: "_DecodeBuffers", rows: Sequence[DecodeRow], min_rows: int
    ) -> DecodeInputs:
        num_rows = max(len(rows), min_rows)
        assert num_rows <= self._sizes[-1], f"{num_rows} decode rows, the buffers hold {self._sizes[-1]}"
        size = next(size for size in self._sizes if size >= num_rows)
        padding = [0] * (size - len(rows))
        buffers.token_ids[:size] = [row.token_id for row in rows] + padding
        buffers.positions[:size] = [row.position for row in rows] + padding
        buffers.slots[:size] = [row.slot for row in rows] + padding
        return buffers.views[size]


class _DecodeBuffers:
    """One set: arrays of the largest size, and tensors that are views of them, for every size."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.token_ids = np.zeros(sizes[-1], dtype=np.int64)
        self.positions = np.zeros(sizes[-1], dtype=np.int32)
        self.slots = np.zeros(sizes[-1], dtype=np.int32)
        columns = [torch.from_numpy(array) for array in (self.token_ids, self.positions, self.slots)]
        self.views = {size: DecodeInputs(*(column[:size] for column in columns)) for size in sizes}


def _prefill_inputs(spans: Sequence[PrefillSpan]) -> PrefillInputs:
    """Flatten spans in order; each chunk of a span reads and writes the span's slot."""
    for span in spans:
        assert span.chunk_ends[-1] == span.start + len(span.token_ids), "the last chunk ends with the span"
    num_tokens = np.array([len(span.token_ids) for span in spans])
    slots = np.array([span.slot for span in spans])
    span_starts = np.array([span.start for span in spans])
    num_chunks = np.array([len(span.chunk_ends) for span in spans])
    # Flat index minus absolute position, for each span.
    shifts = np.cumsum(num_tokens) - num_tokens - span_starts
    positions = np.arange(num_tokens.sum()) - np.repeat(shifts, num_tokens)
    chunk_ends = np.concatenate([span.chunk_ends for span in spans]) + np.repeat(shifts, num_chunks)
    starts = np.concatenate([[0], chunk_ends])
    chunk_positions = positions[starts[:-1]]
    chunk_rows = _int32(np.repeat(slots, num_chunks))
    return PrefillInputs(
        token_ids=torch.from_numpy(np.concatenate([np.asarray(s.token_ids, dtype=np.int64) for s in spans])),
        positions=_int32(positions),
        table_rows=_int32(np.repeat(slots, num_tokens)),
        chunks=Chunks(
            starts=_int32(starts),
            read_slots=chunk_rows,
            write_slots=chunk_rows,
            checkpoint_slots=torch.zeros_like(chunk_rows),
            has_initial_state=torch.from_numpy(chunk_positions > 0),
        ),
        chunk_rows=chunk_rows,
        chunk_positions=_int32(chunk_positions),
    )


def _int32(values: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(values.astype(np.int32))
