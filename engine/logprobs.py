"""Log-probabilities that a reply shows, from the model's unmodified logits.

Owns the reduction of (R, V) logits to a few numbers a row. A row's numbers depend on that row alone, bit
for bit: the softmax of a contiguous last dimension does, whatever the number of rows (a test holds
torch to that). It knows no temperature, penalty or mask: what is reported is the model's own distribution.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mambad.engine.outputs import TokenLogprobs
from mambad.kernels.ranking import top_ids


def finite_rows(logits: Tensor) -> Tensor:
    """Return for each row whether all its values are finite: logits (R, V) float32 -> (R,) bool."""
    # Both extremes propagate NaN; two reductions cost less than a pass that looks at each element.
    return torch.isfinite(logits.amax(dim=-1)) & torch.isfinite(logits.amin(dim=-1))


def token_logprobs(logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
    """Return the log-probability of one token a row and of the row's most likely tokens.

    Args:
        logits: (R, V) float32, contiguous, finite; not changed.
        token_ids: the token of each row, R of them.
        num_top: how many of the most likely tokens to list for each row; 0 lists none.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(1, torch.tensor(token_ids, dtype=torch.int64).unsqueeze(1)).squeeze(1)
    entries = []
    for row, (token_id, logprob, k) in enumerate(zip(token_ids, chosen.tolist(), num_top, strict=True)):
        top: tuple[tuple[int, float], ...] = ()
        if k > 0:
            # Ranked by logit: two logits may round to one log-probability, and the greedy token is first.
            ids = top_ids(logits[row].numpy(), k)
            top = tuple(zip(ids.tolist(), logprobs[row].numpy()[ids].tolist(), strict=True))
        entries.append(TokenLogprobs(token_id, logprob, top))
    return entries
