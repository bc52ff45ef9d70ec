"""Computes one step: forward passes, sampling, results.

Owns the token that was last drawn for each slot, so that a step can consume what the step before it draws
without a detour over the host. It runs on whatever thread calls it, one step at a time, in order;
launching, buffers and threads belong to the runner around it.
"""

from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from mambad.engine.batch import TOKEN_OF_LAUNCHED_STEP, Batch, DecodeRow, PrefillSpan, RowResult
from mambad.engine.captured_decoder import CapturedDecoder
from mambad.engine.input_buffers import StepInputs
from mambad.engine.logprobs import finite_rows, token_logprobs
from mambad.engine.model_inputs import DecodeInputs, Pools
from mambad.engine.models.decoder import Decoder
from mambad.engine.outputs import TokenLogprobs
from mambad.engine.sampler import SampledRow, Sampler

MAX_SCORED_ROWS = 64
"""Rows of a prompt whose logits (rows, V) exist at once."""


class ModelRunner:
    """A decoder, its pools and a sampler, joined.

    Args:
        decoder: the model.
        pools: states, keys and values, and the block table's device rows.
        sampler: draws from the decoder's logits.
    """

    def __init__(self, decoder: Decoder | CapturedDecoder, pools: Pools, sampler: Sampler) -> None:
        self._decoder = decoder
        self._pools = pools
        self._sampler = sampler
        self._last_tokens = np.zeros(pools.block_table.shape[0], dtype=np.int64)

    def execute(self, batch: Batch, inputs: StepInputs) -> tuple[RowResult, ...]:
        """Compute a step: prefill, decode, then one draw for every row that wants a token.

        Args:
            batch: what is computed.
            inputs: the same as tensors.

        Returns:
            Prefill rows in order, then decode rows in order.
        """
        items: tuple[PrefillSpan | DecodeRow, ...] = (*batch.prefills, *batch.decodes)
        last_hidden: list[Tensor] = []
        scores: list[_Scores] = []
        if inputs.prefill is not None:
            hidden = self._decoder.prefill(inputs.prefill, self._pools)
            ends = list(accumulate(len(span.token_ids) for span in batch.prefills))
            last_hidden.append(hidden[[end - 1 for end in ends]])
            for span, end in zip(batch.prefills, ends, strict=True):
                scores.append(self._score(span, hidden[end - len(span.token_ids) : end]))
        if inputs.decode is not None:
            hidden = self._decoder.decode(self._with_drawn_tokens(inputs.decode), self._pools)
            last_hidden.append(hidden[: len(batch.decodes)])
        scores.extend([_UNSCORED] * len(batch.decodes))
        drawn = self._draw(items, last_hidden)
        return tuple(_result(*row) for row in zip(items, scores, drawn, strict=True))

    def _with_drawn_tokens(self, inputs: DecodeInputs) -> DecodeInputs:
        """Put drawn tokens in place of TOKEN_OF_LAUNCHED_STEP; the buffers stay as they are."""
        token_ids = inputs.token_ids.numpy()
        is_drawn = token_ids == TOKEN_OF_LAUNCHED_STEP
        if not is_drawn.any():
            return inputs
        token_ids = np.where(is_drawn, self._last_tokens[inputs.slots.numpy()], token_ids)
        return DecodeInputs(torch.from_numpy(token_ids), inputs.positions, inputs.slots)

    def _score(self, span: PrefillSpan, hidden: Tensor) -> "_Scores":
        """Return log-probabilities for the prompt tokens that the span's rows (n, hidden) predict."""
        if span.num_prompt_logprobs < 0:
            return _UNSCORED
        targets = list(span.token_ids[1:])
        if span.next_token_id is not None:
            targets.append(span.next_token_id)
        entries: list[TokenLogprobs] = []
        for first in range(0, len(targets), MAX_SCORED_ROWS):
            piece = targets[first : first + MAX_SCORED_ROWS]
            logits = self._decoder.logits(hidden[first : first + len(piece)])
            if not bool(finite_rows(logits).all()):
                return (), False
            entries.extend(token_logprobs(logits, piece, [span.num_prompt_logprobs] * len(piece)))
        return tuple(entries), True

    def _draw(
        self, items: tuple[PrefillSpan | DecodeRow, ...], last_hidden: list[Tensor]
    ) -> list[SampledRow | None]:
        """Draw for the items that want a token and remember it for their slots: one entry an item."""
        drawn: list[SampledRow | None] = [None] * len(items)
        wanted = [(row, item.slot, item.sample) for row, item in enumerate(items) if item.sample is not None]
        if not wanted:
            return drawn
        rows, slots, specs = (list(column) for column in zip(*wanted, strict=True))
        hidden = last_hidden[0] if len(last_hidden) == 1 else torch.cat(last_hidden)
        logits = self._decoder.logits(hidden if len(rows) == len(items) else hidden[rows])
        sampled = self._sampler.sample(logits, specs)
        self._last_tokens[slots] = [row.token_id for row in sampled]
        for row, result in zip(rows, sampled, strict=True):
            drawn[row] = result
        return drawn


_Scores = tuple[tuple[TokenLogprobs, ...], bool]
"""Log-probabilities of a span's tokens, and whether all their logits were finite; if not, there are none."""

_UNSCORED: _Scores = ((), True)


def _result(item: PrefillSpan | DecodeRow, scores: _Scores, drawn: SampledRow | None) -> RowResult:
    prompt_logprobs, is_finite = scores
    if drawn is None:
        return RowResult(item.request_key, None, None, prompt_logprobs, is_finite)
    return RowResult(
        item.request_key, drawn.token_id, drawn.logprobs, prompt_logprobs, is_finite and drawn.is_finite
    )
