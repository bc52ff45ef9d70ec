"""Collects what one step will compute, within its token budget. No torch."""

from collections.abc import Sequence

from mambad.engine.batch import TOKEN_OF_LAUNCHED_STEP, Batch, DecodeRow, PrefillSpan, SampleSpec, TableUpdate
from mambad.engine.cuts import CHUNK_SIZE, chunk_ends, furthest_end
from mambad.engine.request import Request


class BatchBuilder:
    """One step in the making.

    Writes the launch bookkeeping of the requests that it takes in: `num_launched_tokens`,
    `num_pending_samples` and `last_launched_step`. It works for the scheduler, their owner.

    Args:
        step_id: number of the step.
        max_tokens: token budget. Decode rows always fit; at least one chunk of prefill does, too.
    """

    def __init__(self, step_id: int, max_tokens: int) -> None:
        self.step_id = step_id
        self._max_tokens = max_tokens
        self._num_prefill_tokens = 0
        self._prefills: list[PrefillSpan] = []
        self._decodes: list[DecodeRow] = []
        self._table_updates: list[TableUpdate] = []

    def span_end(self, request: Request) -> int:
        """Return where the next span of a prompt would end; its start when the budget has no room."""
        left = self._max_tokens - len(self._decodes) - self._num_prefill_tokens
        if self._num_prefill_tokens == 0:
            left = max(left, CHUNK_SIZE)
        return furthest_end(
            request.cuts, request.num_launched_tokens, request.num_prompt_tokens, max(left, 0)
        )

    def add_prefill(self, request: Request, slot: int, end: int) -> None:
        """Take in the tokens of a prompt up to `end`."""
        start = request.num_launched_tokens
        is_last = end == request.num_prompt_tokens
        sample = None
        if is_last and request.num_tokens == end and request.params.max_tokens > 0:
            sample = self._sample(request)
        self._prefills.append(
            PrefillSpan(
                request_key=request.key,
                slot=slot,
                token_ids=request.token_ids[start:end],
                start=start,
                chunk_ends=chunk_ends(request.cuts, start, end),
                sample=sample,
                num_prompt_logprobs=request.params.num_prompt_logprobs,
                next_token_id=None if is_last else request.token_ids[end],
            )
        )
        self._num_prefill_tokens += end - start
        self._launch(request, end)

    def add_decode(self, request: Request, slot: int) -> None:
        """Take in the next token of a request whose prompt has been launched."""
        position = request.num_launched_tokens
        is_known = position < len(request.token_ids)
        sample = self._sample(request) if position + 1 == request.num_tokens else None
        token_id = request.token_ids[position] if is_known else TOKEN_OF_LAUNCHED_STEP
        self._decodes.append(DecodeRow(request.key, slot, token_id, position, sample))
        self._launch(request, position + 1)

    def add_blocks(self, slot: int, first_column: int, block_ids: Sequence[int]) -> None:
        """Have blocks written into the slot's row of the block table before the step computes."""
        if block_ids:
            self._table_updates.append(TableUpdate(slot, first_column, tuple(block_ids)))

    def build(self, min_decode_rows: int = 0) -> Batch | None:
        """Return the batch, or None when there is nothing to compute; see Batch.min_decode_rows."""
        if not self._prefills and not self._decodes:
            return None
        return Batch(
            self.step_id,
            tuple(self._prefills),
            tuple(self._decodes),
            tuple(self._table_updates),
            min_decode_rows=min_decode_rows,
        )

    def _sample(self, request: Request) -> SampleSpec:
        spec = SampleSpec(
            params=request.params,
            position=request.num_tokens,
            num_generated=request.num_tokens - request.num_prompt_tokens,
            token_ids=request.token_ids,
            num_prompt_tokens=request.num_prompt_tokens,
            grammar=request.grammar,
        )
        request.num_pending_samples += 1
        return spec

    def _launch(self, request: Request, num_launched_tokens: int) -> None:
        request.num_launched_tokens = num_launched_tokens
        request.last_launched_step = self.step_id
