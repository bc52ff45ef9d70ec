"""Drives a decoder the way the runner does, without scheduler and sampler: spans, decode rows, real pools.

All slots and blocks, the null ones included, are NaN at first, so that whoever reads what it should not
read shows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mambad.engine.batch import Batch, DecodeRow, PrefillSpan
from mambad.engine.block_table import BlockTable
from mambad.engine.input_buffers import InputBuffers
from mambad.engine.kv_pool import KVPool
from mambad.engine.model_inputs import Pools
from mambad.engine.models.decoder import Decoder
from mambad.engine.state_pool import StatePool

BLOCK_SIZE = 16
MAX_BLOCKS = 9
"""Blocks of one slot: room for 144 tokens."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, start + sum(lengths)) of a prompt for a slot, in chunks of these lengths."""

    slot: int
    token_ids: Tensor
    start: int
    lengths: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + sum(self.lengths)


class Driver:
    """A decoder with pools of its own; slot s holds blocks of its own, not in order."""

    def __init__(self, decoder: Decoder, num_slots: int = 4) -> None:
        self.decoder = decoder
        device = torch.device("cpu")
        states = StatePool(decoder.spec, num_slots, device)
        states.poison(range(num_slots + 1))
        kv = KVPool(decoder.spec, num_slots * MAX_BLOCKS, BLOCK_SIZE, device)
        kv.poison(range(num_slots * MAX_BLOCKS + 1))
        table = BlockTable(num_slots, MAX_BLOCKS, device)
        for slot in range(1, num_slots + 1):
            first = (slot - 1) * MAX_BLOCKS + 1
            table.update(slot, 0, list(reversed(range(first, first + MAX_BLOCKS))))
        table.commit(table.stage())
        self.pools = Pools(states, kv, table.rows)
        self._buffers = InputBuffers([1, 2, 4, 8, 32])

    def prefill(self, *spans: Span) -> Tensor:
        """Return logits (T, V) of all tokens of the spans, in one call."""
        inputs = self._buffers.fill(Batch(1, prefills=tuple(_as_prefill(span) for span in spans))).prefill
        assert inputs is not None
        return self.decoder.logits(self.decoder.prefill(inputs, self.pools))

    def decode(self, *rows: tuple[int, int, int]) -> Tensor:
        """Return logits (B, V) of rows (slot, token, position); the call is padded to a larger size."""
        decodes = tuple(DecodeRow(0, slot, token_id, position, None) for slot, token_id, position in rows)
        inputs = self._buffers.fill(Batch(1, decodes=decodes)).decode
        assert inputs is not None
        return self.decoder.logits(self.decoder.decode(inputs, self.pools))[: len(rows)]

    def run_in_pieces(self, token_ids: Tensor, calls: Sequence[Sequence[int]], slot: int = 1) -> Tensor:
        """Return logits (T, V) of a prompt; each entry of `calls` lists the chunk lengths of one call."""
        pieces: list[Tensor] = []
        start = 0
        for lengths in calls:
            span = Span(slot, token_ids, start, lengths)
            pieces.append(self.prefill(span))
            start = span.end
        return torch.cat(pieces)

    def run_token_by_token(self, token_ids: Tensor, start: int = 0, slot: int = 1) -> Tensor:
        """Return logits of tokens from `start` on, each decoded alone; token 0 has to be prefilled."""
        pieces = []
        for position in range(start, len(token_ids)):
            if position == 0:
                pieces.append(self.prefill(Span(slot, token_ids, 0, [1])))
            else:
                pieces.append(self.decode((slot, int(token_ids[position]), position)))
        return torch.cat(pieces)


def whole(num_tokens: int) -> list[int]:
    """Return the chunk lengths of a prompt without end-of-message tokens."""
    return [min(64, num_tokens - start) for start in range(0, num_tokens, 64)]


def _as_prefill(span: Span) -> PrefillSpan:
    token_ids = span.token_ids[span.start : span.end].tolist()
    ends = torch.tensor(list(span.lengths)).cumsum(0) + span.start
    return PrefillSpan(0, span.slot, token_ids, span.start, tuple(ends.tolist()), None)
