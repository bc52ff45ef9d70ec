"""Reading the slot tensors of a call: its chunks or its decode rows, one at a time, and their states.

Owns the rules of slot 0 and of fresh states for the reference ops. It computes nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mambad.kernels.chunks import Chunks


@dataclass(frozen=True, slots=True)
class Span:
    """One chunk or decode row of a call.

    Attributes:
        tokens: its rows on the first axis of the activations.
        read_slot: slot whose state it starts from; 0: it starts from zero.
        write_slots: slots that receive the state after it.
    """

    tokens: slice
    read_slot: int
    write_slots: tuple[int, ...]


def chunk_spans(chunks: Chunks) -> Iterator[Span]:
    """Yield the chunks of a prefill call in order."""
    starts = chunks.starts.tolist()
    reads = (chunks.read_slots * chunks.has_initial_state).tolist()
    writes = zip(chunks.write_slots.tolist(), chunks.checkpoint_slots.tolist(), strict=True)
    for index, slots in enumerate(writes):
        tokens = slice(starts[index], starts[index + 1])
        yield Span(tokens, reads[index], tuple(slot for slot in slots if slot != 0))


def row_spans(read_slots: Tensor, write_slots: Tensor) -> Iterator[Span]:
    """Yield the rows of an update call, padding rows (write slot 0) left out."""
    slots = zip(read_slots.tolist(), write_slots.tolist(), strict=True)
    for row, (read_slot, write_slot) in enumerate(slots):
        if write_slot != 0:
            yield Span(slice(row, row + 1), read_slot, (write_slot,))


def read_state(states: Tensor, span: Span) -> Tensor:
    """Return a float32 copy of the state that the span starts from: states (S, ...) -> (...)."""
    if span.read_slot == 0:
        return torch.zeros_like(states[0], dtype=torch.float32)
    return states[span.read_slot].to(torch.float32, copy=True)


def write_state(states: Tensor, span: Span, state: Tensor) -> None:
    """Store state (...) in every slot of states (S, ...) that the span writes, rounded to their dtype."""
    for slot in span.write_slots:
        states[slot] = state


def fresh(x: Tensor) -> Tensor:
    """Copy x into memory of its own.

    What torch's kernels compute depends, in the last bits, on strides and alignment; a copy always has the
    same ones, whereas a view's depend on where in the call it lies.
    """
    return x.clone(memory_format=torch.contiguous_format)
