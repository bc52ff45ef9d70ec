"""What a model's forward pass takes besides its weights: tokens, positions, and the memory it works in.

Frozen descriptors of tensors on the device; the runner fills them. Nothing here allocates or computes.
"""

from dataclasses import dataclass

from torch import Tensor

from mambad.engine.kv_pool import KVPool
from mambad.engine.state_pool import StatePool
from mambad.kernels.chunks import Chunks


@dataclass(frozen=True, slots=True, eq=False)
class PrefillInputs:
    """T prompt tokens of one or more requests, as C chunks that follow each other.

    Attributes:
        token_ids: (T,) int64.
        positions: (T,) int32 — absolute position in the request.
        table_rows: (T,) int32 — row of the block table, which is the request's slot.
        chunks: where the chunks lie and which slots they read and write.
        chunk_rows: (C,) int32 — row of the block table of each chunk.
        chunk_positions: (C,) int32 — absolute position of each chunk's first token.
    """

    token_ids: Tensor
    positions: Tensor
    table_rows: Tensor
    chunks: Chunks
    chunk_rows: Tensor
    chunk_positions: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DecodeInputs:
    """One token of each of B requests, padding rows included.

    Attributes:
        token_ids: (B,) int64.
        positions: (B,) int32 — absolute position of the token.
        slots: (B,) int32 — slot that is read and written, and row of the block table; 0: padding.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Pools:
    """The memory that outlives a step.

    Attributes:
        states: recurrent states by layer and slot.
        kv: keys and values by attention layer and block.
        block_table: (S, M) int32 — block ids of each slot's request; row 0 is all null.
    """

    states: StatePool
    kv: KVPool
    block_table: Tensor
