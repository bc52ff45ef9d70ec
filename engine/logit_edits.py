"""What a request's parameters change in its row of logits: penalties, bias and masks.

Works on one row in host memory, in place, and touches only the ids concerned. It does not draw, and
temperature and the top-k, top-p and min-p filters are not here; what masks are is in `token_masks`. No torch.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mambad.engine.batch import SampleSpec
from mambad.engine.token_masks import has_masks, mask_tokens

LARGEST_LOGIT = float(np.finfo(np.float32).max)
"""Edited logits stay within ± this: whatever the parameters, none becomes infinite."""


def needs_edits(spec: SampleSpec) -> bool:
    """Whether `edit_logits` would change anything."""
    return spec.params.has_penalties or bool(spec.params.logit_bias) or has_masks(spec)


def edit_logits(row: NDArray[np.float32], spec: SampleSpec, eos_token_ids: Sequence[int]) -> None:
    """Apply penalties, then bias, then masks to `row` (V,), finite, in place.

    Args:
        row: logits of one row.
        spec: the row's parameters; `token_ids` holds ids below V.
        eos_token_ids: the model's own end-of-sequence ids, masked with the request's stop ids.
    """
    params = spec.params
    if params.has_penalties:
        _penalise(row, spec)
    if params.logit_bias:
        ids, biases = zip(*params.logit_bias, strict=True)
        _store(row, np.array(ids, dtype=np.int64), row[list(ids)].astype(np.float64) + np.array(biases))
    if has_masks(spec):
        mask_tokens(row, spec, eos_token_ids)


def _penalise(row: NDArray[np.float32], spec: SampleSpec) -> None:
    params = spec.params
    token_ids = np.asarray(spec.token_ids, dtype=np.int64)
    if params.repetition_penalty != 1.0:
        seen = np.unique(token_ids)
        logits = row[seen].astype(np.float64)
        penalty = params.repetition_penalty
        _store(row, seen, np.where(logits > 0, logits / penalty, logits * penalty))
    generated, counts = np.unique(token_ids[spec.num_prompt_tokens :], return_counts=True)
    penalties = params.presence_penalty + params.frequency_penalty * counts
    _store(row, generated, row[generated].astype(np.float64) - penalties)


def _store(row: NDArray[np.float32], ids: NDArray[np.int64], logits: NDArray[np.float64]) -> None:
    row[ids] = np.clip(logits, -LARGEST_LOGIT, LARGEST_LOGIT).astype(np.float32)
