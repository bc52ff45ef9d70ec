"""Which tokens a request may draw next: its grammar, `allowed_token_ids`, `bad_words`, and the ends that
min_tokens masks.

Works on one row of logits in host memory, in place, after penalties and bias. A token that is not allowed can
never be drawn; one that is only masked (a bad word, an early end) can, when nothing else is left. No torch.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mambad.engine.batch import SampleSpec

FORBIDDEN = -float(np.finfo(np.float32).max)
MASKED = FORBIDDEN / 2
"""Far below any logit and far above FORBIDDEN."""


def has_masks(spec: SampleSpec) -> bool:
    """Whether `mask_tokens` could change anything."""
    params = spec.params
    is_early = spec.num_generated < params.min_tokens
    is_limited = bool(params.allowed_token_ids) or spec.grammar is not None
    return is_early or is_limited or bool(params.bad_words)


def mask_tokens(row: NDArray[np.float32], spec: SampleSpec, eos_token_ids: Sequence[int]) -> None:
    """Mask what may not come next in `row` (V,), in place.

    Args:
        row: edited logits of one row.
        spec: the row's parameters; `token_ids` is read for bad words of several tokens.
        eos_token_ids: the model's own end-of-sequence ids.
    """
    params = spec.params
    masked = list(_bad_ids(spec))
    if spec.num_generated < params.min_tokens:
        masked += (*eos_token_ids, *params.stop_token_ids)
    row[[token_id for token_id in masked if 0 <= token_id < row.shape[0]]] = MASKED
    if params.allowed_token_ids:
        ids = np.array(params.allowed_token_ids, dtype=np.int64)
        allowed = row[ids]
        row.fill(FORBIDDEN)
        row[ids] = allowed
    if spec.grammar is not None:
        np.copyto(row, FORBIDDEN, where=~spec.grammar.allowed(row.shape[0]))
        if row.max() <= FORBIDDEN:
            message = "no token is left that the grammar and the other fields of the request allow"
            spec.grammar.fail(message, "grammar_dead_end")


def _bad_ids(spec: SampleSpec) -> Iterator[int]:
    """Yield the last token of each bad word whose other tokens were generated last."""
    for word in spec.params.bad_words:
        num_before = len(word) - 1
        if num_before == 0:
            yield word[0]
        elif num_before <= spec.num_generated and tuple(spec.token_ids[-num_before:]) == word[:-1]:
            yield word[-1]
