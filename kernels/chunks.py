"""Where the chunks of a prefill call lie and which state slots each one reads and writes.

Owns the `Chunks` descriptor that every chunk op takes. It does not decide where a prompt may be cut
(`mambad.engine.cuts` does) and it checks nothing that would need a look at the tensors' values.
"""

from dataclasses import dataclass

from torch import Tensor

MAX_CHUNK_TOKENS = 64
"""Longest chunk, in tokens, that an op accepts."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """C chunks that follow each other on the flat token axis (T tokens) of one call.

    Chunks take effect in order: a later one may read the slot that an earlier one of the same call wrote.
    A chunk's outputs and final state depend on its own tokens and on the state it starts from, bit for
    bit, and on no other chunk. Slot 0 is the null slot: chunk ops neither read nor write it.

    Attributes:
        starts: (C + 1,) int32 — chunk c is tokens [starts[c], starts[c + 1]), 1 to MAX_CHUNK_TOKENS of
            them; starts[0] is 0 and starts[C] is T.
        read_slots: (C,) int32 — slot whose state the chunk starts from; not 0 where has_initial_state.
        write_slots: (C,) int32 — slot that receives the state after the chunk; 0: none does. May be the
            slot that is read.
        checkpoint_slots: (C,) int32 — a second slot that receives the same bytes; 0: none.
        has_initial_state: (C,) bool — False: start from zero without reading `read_slots`, whose state
            may then be anything, NaN included.
    """

    starts: Tensor
    read_slots: Tensor
    write_slots: Tensor
    checkpoint_slots: Tensor
    has_initial_state: Tensor

    @property
    def num_chunks(self) -> int:
        """Number of chunks C."""
        return self.read_slots.shape[0]
