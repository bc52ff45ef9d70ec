"""Where a prefill may be split: a pure function of the tokens.

A state computed over [0, p) is the same bits whichever requests, budgets and steps led there, because
every prefill chunk begins and ends at these positions (or at the end of the prompt). The scheduler, the
prefix cache and the kernels all take their chunk grid from here. No torch.
"""

from bisect import bisect_right
from collections.abc import Collection, Sequence

CHUNK_SIZE = 64
"""Longest chunk in tokens. Ours, whatever `chunk_size` a checkpoint's configuration names."""


def find_cuts(token_ids: Sequence[int], end_of_message_ids: Collection[int] = ()) -> list[int]:
    """Return the ascending positions in (0, len(token_ids)] at which a prefill may be split.

    Position p is a cut when token p - 1 ends a message, or when CHUNK_SIZE tokens lie between the last
    cut and p. Whether p is a cut depends on the tokens before p only.
    """
    positions: list[int] = []
    last = 0
    if end_of_message_ids:
        for position, token_id in enumerate(token_ids, start=1):
            if token_id in end_of_message_ids:
                positions.extend(range(last + CHUNK_SIZE, position, CHUNK_SIZE))
                positions.append(position)
                last = position
    positions.extend(range(last + CHUNK_SIZE, len(token_ids) + 1, CHUNK_SIZE))
    return positions


def chunk_ends(cuts: Sequence[int], start: int, end: int) -> tuple[int, ...]:
    """Return the end of every chunk of the span [start, end): the cuts inside it, and `end` itself."""
    inside = tuple(cuts[bisect_right(cuts, start) : bisect_right(cuts, end)])
    return inside if inside and inside[-1] == end else (*inside, end)


def furthest_end(cuts: Sequence[int], start: int, num_prompt_tokens: int, max_tokens: int) -> int:
    """Return where a span from `start` of at most `max_tokens` tokens may end; `start` if nowhere.

    The end is the last cut in reach, or the end of the prompt.
    """
    reach = start + max_tokens
    if reach >= num_prompt_tokens:
        return num_prompt_tokens
    index = bisect_right(cuts, reach)
    return cuts[index - 1] if index and cuts[index - 1] > start else start
