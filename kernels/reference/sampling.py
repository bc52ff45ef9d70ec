"""Draws from rows of logits in torch and numpy."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mambad.kernels.draws import DrawParams
from mambad.kernels.ranking import rank, top_ids

_MASS_TOLERANCE = 1e-4
"""Bound on the error of a float32 softmax's sum, with plenty to spare."""

_PIECE_SIZE = 1 << 17
"""Numbers worked on at once: larger pieces leave the cache, smaller ones cost more calls."""


def draw(logits: Tensor, params: DrawParams) -> NDArray[np.int64]:
    """Implement `Ops.draw`."""
    token_ids = np.full(logits.shape[0], -1, dtype=np.int64)
    # Both extremes propagate NaN.
    is_finite = (torch.isfinite(logits.amax(dim=-1)) & torch.isfinite(logits.amin(dim=-1))).numpy()
    is_greedy = params.temperatures == 0
    rows = np.flatnonzero(is_finite & is_greedy)
    # torch promises the first of equal maxima, which is the lowest id.
    token_ids[rows] = logits[torch.from_numpy(rows)].argmax(dim=-1).numpy()
    drawn = np.flatnonzero(is_finite & ~is_greedy)
    piece = max(1, _PIECE_SIZE // logits.shape[1])
    for first in range(0, len(drawn), piece):
        rows = drawn[first : first + piece]
        token_ids[rows] = _draw_piece(logits[torch.from_numpy(rows)], params, rows)
    return token_ids


def _draw_piece(logits: Tensor, params: DrawParams, rows: NDArray[np.int64]) -> list[int]:
    """Draw for given rows of the parameters: logits (n, V), finite."""
    temperatures = torch.from_numpy(params.temperatures[rows]).unsqueeze(1)
    # The largest logit becomes 0 first, so a tiny temperature can't overflow.
    probs = torch.softmax((logits - logits.amax(dim=-1, keepdim=True)).div_(temperatures), dim=-1)
    has_top_k = (params.top_k[rows] > 0) & (params.top_k[rows] < logits.shape[1])
    token_ids = [0] * len(rows)
    whole = []
    for place, row in enumerate(rows):
        if has_top_k[place] or params.top_p[row] < 1.0:
            token_ids[place] = _draw_by_rank(probs[place].numpy(), params, row)
        else:
            whole.append(place)
    if whole:
        by_id = _draw_by_id(probs[whole], params.min_p[rows[whole]], params.uniforms[rows[whole]])
        for place, token_id in zip(whole, by_id, strict=True):
            token_ids[place] = token_id
    return token_ids


def _draw_by_id(probs: Tensor, min_p: NDArray[np.float32], uniforms: NDArray[np.float64]) -> Sequence[int]:
    """Draw from each row by inversion of the sums in the order of ids: probs (n, V) float32."""
    if min_p.any():
        bounds = probs.amax(dim=-1, keepdim=True) * torch.from_numpy(min_p).unsqueeze(1)
        probs = torch.where(probs >= bounds, probs, 0.0)
    sums = probs.cumsum(dim=-1, dtype=torch.float64)
    # A draw is at most 1 - 2^-53, so a target stays below its total in floating point too; searching for
    # the first sum above it never finds a token of probability 0.
    targets = sums[:, -1:] * torch.from_numpy(uniforms).unsqueeze(1)
    token_ids: list[int] = torch.searchsorted(sums, targets, right=True).squeeze(1).tolist()
    return token_ids


def _draw_by_rank(probs: NDArray[np.float32], params: DrawParams, row: np.int64) -> int:
    """Draw from what top-k, then top-p, then min-p leave of one row, most likely first: probs (V,)."""
    top_k, top_p = int(params.top_k[row]), float(params.top_p[row])
    has_top_k = 0 < top_k < probs.shape[0]
    if has_top_k:
        ids = top_ids(probs, top_k)
    else:
        # Tokens below this bound have less than 1 - top_p of the mass, so top-p drops all of them.
        bound = max(0.0, 1.0 - top_p - _MASS_TOLERANCE) / probs.shape[0]
        ids = rank(probs, np.flatnonzero(probs >= bound))
    ranked = probs[ids]
    sums = np.cumsum(ranked, dtype=np.float64)
    num_kept = int(np.count_nonzero(ranked >= params.min_p[row] * ranked[0]))
    if top_p < 1.0:
        mass = sums[-1] if has_top_k else 1.0
        num_kept = min(num_kept, 1 + int(np.count_nonzero(sums < top_p * mass)))
    target = params.uniforms[row] * sums[num_kept - 1]
    return int(ids[np.searchsorted(sums[:num_kept], target, side="right")])
