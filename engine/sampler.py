"""Draws one token a row from (R, V) logits.

Owns the order in which a request's parameters act: penalties, logit bias and the min_tokens mask (all
three in `mambad.engine.logit_edits`), temperature, top-k, top-p, min-p, then the draw. A row's result
depends on its logits, its parameters and the key of its draw, and on no other row, bit for bit. Rows
that ask for little pay for little. It does not decide when a request ends, and it keeps nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mambad.engine.batch import SampleSpec
from mambad.engine.logit_edits import edit_logits, needs_edits
from mambad.engine.logprobs import finite_rows, token_logprobs
from mambad.engine.outputs import TokenLogprobs
from mambad.engine.random_draws import uniform_draws
from mambad.engine.ranking import rank, top_ids
from mambad.engine.sampling_params import SamplingParams

_MASS_TOLERANCE = 1e-4
"""Bound on the error of a float32 softmax's sum, with plenty to spare."""

_PIECE_SIZE = 1 << 17
"""Numbers worked on at once when drawing: larger pieces leave the cache, smaller ones cost more calls."""


@dataclass(frozen=True, slots=True)
class SampledRow:
    """What was drawn for one row.

    Attributes:
        token_id: the drawn token; 0 without meaning when not is_finite.
        logprobs: of that token in the model's own distribution, if asked for and is_finite.
        is_finite: False when a logit of the row was NaN or infinite.
    """

    token_id: int
    logprobs: TokenLogprobs | None
    is_finite: bool


class Sampler:
    """Samples rows of logits in host memory.

    Args:
        eos_token_ids: the model's end-of-sequence ids, which min_tokens masks.
    """

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)

    def sample(self, logits: Tensor, specs: Sequence[SampleSpec]) -> list[SampledRow]:
        """Draw a token for each row.

        Args:
            logits: (R, V) float32, contiguous; not changed.
            specs: what is wanted for each row, R of them.
        """
        assert logits.shape[0] == len(specs), "one spec a row"
        is_finite = finite_rows(logits)
        if not bool(is_finite.all()):
            logits = torch.where(is_finite.unsqueeze(1), logits, 0.0)
        token_ids = [0] * len(specs)
        for is_greedy, pick in ((True, _pick_greedy), (False, _pick_drawn)):
            rows = [row for row, spec in enumerate(specs) if spec.params.is_greedy == is_greedy]
            if rows:
                chosen = [specs[row] for row in rows]
                for row, token_id in zip(rows, pick(self._edited(logits, rows, chosen), chosen), strict=True):
                    token_ids[row] = token_id
        return _results(logits, specs, token_ids, is_finite.tolist())

    def _edited(self, logits: Tensor, rows: list[int], specs: list[SampleSpec]) -> Tensor:
        """Return the given rows of `logits` as edited: a new tensor, or `logits` if nothing changes."""
        edits = [place for place, spec in enumerate(specs) if needs_edits(spec)]
        if len(rows) < logits.shape[0]:
            logits = logits.index_select(0, torch.tensor(rows))
        elif edits:
            logits = logits.clone()
        for place in edits:
            edit_logits(logits[place].numpy(), specs[place], self._eos_token_ids)
        return logits


def _pick_greedy(logits: Tensor, specs: Sequence[SampleSpec]) -> list[int]:
    # torch promises the first of equal maxima, which is the lowest id.
    token_ids: list[int] = logits.argmax(dim=-1).tolist()
    return token_ids


def _pick_drawn(logits: Tensor, specs: Sequence[SampleSpec]) -> list[int]:
    num_rows = max(1, _PIECE_SIZE // logits.shape[1])
    token_ids: list[int] = []
    for first in range(0, len(specs), num_rows):
        token_ids += _pick_piece(logits[first : first + num_rows], specs[first : first + num_rows])
    return token_ids


def _pick_piece(logits: Tensor, specs: Sequence[SampleSpec]) -> list[int]:
    temperatures = torch.tensor([spec.params.temperature for spec in specs]).unsqueeze(1)
    # The largest logit becomes 0 first, so a tiny temperature can't overflow.
    probs = torch.softmax((logits - logits.amax(dim=-1, keepdim=True)).div_(temperatures), dim=-1)
    uniforms = uniform_draws(specs)
    token_ids = [0] * len(specs)
    whole = []
    for row, spec in enumerate(specs):
        if _is_ranked(spec.params, logits.shape[1]):
            token_ids[row] = _draw_by_rank(probs[row].numpy(), spec.params, uniforms[row])
        else:
            whole.append(row)
    if whole:
        min_p = [specs[row].params.min_p for row in whole]
        for row, token_id in zip(
            whole, _draw_by_id(_take(probs, whole), min_p, uniforms[whole]), strict=True
        ):
            token_ids[row] = token_id
    return token_ids


def _is_ranked(params: SamplingParams, vocab_size: int) -> bool:
    """Whether a filter needs the tokens in the order of their probability."""
    return params.top_p < 1.0 or 0 < params.top_k < vocab_size


def _draw_by_id(probs: Tensor, min_p: Sequence[float], uniforms: NDArray[np.float64]) -> list[int]:
    """Draw from each row by inversion of the sums in the order of ids: probs (R, V) float32."""
    if any(min_p):
        bounds = probs.amax(dim=-1, keepdim=True) * torch.tensor(min_p).unsqueeze(1)
        probs = torch.where(probs >= bounds, probs, 0.0)
    sums = probs.cumsum(dim=-1, dtype=torch.float64)
    # A draw is at most 1 - 2^-53, so a target stays below its total in floating point too; searching for
    # the first sum above it never finds a token of probability 0.
    targets = sums[:, -1:] * torch.from_numpy(uniforms).unsqueeze(1)
    token_ids: list[int] = torch.searchsorted(sums, targets, right=True).squeeze(1).tolist()
    return token_ids


def _draw_by_rank(probs: NDArray[np.float32], params: SamplingParams, uniform: np.float64) -> int:
    """Draw from what top-k, then top-p, then min-p leave of one row, most likely first: probs (V,)."""
    if 0 < params.top_k < probs.shape[0]:
        ids = top_ids(probs, params.top_k)
    else:
        # Tokens below this bound have less than 1 - top_p of the mass, so top-p drops all of them.
        bound = max(0.0, 1.0 - params.top_p - _MASS_TOLERANCE) / probs.shape[0]
        ids = rank(probs, np.flatnonzero(probs >= bound))
    ranked = probs[ids]
    sums = np.cumsum(ranked, dtype=np.float64)
    num_kept = int(np.count_nonzero(ranked >= np.float32(params.min_p) * ranked[0]))
    if params.top_p < 1.0:
        mass = sums[-1] if 0 < params.top_k < probs.shape[0] else 1.0
        num_kept = min(num_kept, 1 + int(np.count_nonzero(sums < params.top_p * mass)))
    target = uniform * sums[num_kept - 1]
    return int(ids[np.searchsorted(sums[:num_kept], target, side="right")])


def _take(rows: Tensor, indices: list[int]) -> Tensor:
    return rows if len(indices) == rows.shape[0] else rows.index_select(0, torch.tensor(indices))


def _results(
    logits: Tensor, specs: Sequence[SampleSpec], token_ids: list[int], is_finite: list[bool]
) -> list[SampledRow]:
    rows = [row for row, spec in enumerate(specs) if spec.params.num_logprobs >= 0 and is_finite[row]]
    logprobs: dict[int, TokenLogprobs] = {}
    if rows:
        entries = token_logprobs(
            _take(logits, rows),
            [token_ids[row] for row in rows],
            [specs[row].params.num_logprobs for row in rows],
        )
        logprobs = dict(zip(rows, entries, strict=True))
    return [
        SampledRow(token_ids[row] if is_finite[row] else 0, logprobs.get(row), is_finite[row])
        for row in range(len(specs))
    ]
