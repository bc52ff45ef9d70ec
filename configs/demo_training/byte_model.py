"""An interpolated Witten-Bell byte model: the yardstick that the demo model must beat.

Witten and Bell 1991, "The zero-frequency problem", method C, interpolated from order 3 (three bytes of
context) down to the uniform distribution over 256 bytes. Exact counts in numpy; nothing is pruned.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]


class WittenBell:
    """Byte model of the given order.

    ``P_k(b | c) = (n(c, b) + t(c) P_{k-1}(b | c')) / (n(c) + t(c))`` where n counts, t(c) is the number of
    distinct bytes seen after context c and c' drops the oldest byte; an unseen context passes P_{k-1} on.
    Every text starts after ``order`` newlines.
    """

    def __init__(self, texts: Sequence[bytes], order: int = 3) -> None:
        self.order = order
        self._tables: list[tuple[Keys, Keys, Keys, Keys, Keys]] = []
        for length in range(order + 1):
            keys = np.concatenate([_keys(text, length, order) for text in texts])
            grams, gram_counts = np.unique(keys, return_counts=True)
            contexts, first, distinct = np.unique(grams >> 8, return_index=True, return_counts=True)
            totals = np.add.reduceat(gram_counts, first)
            self._tables.append((grams, gram_counts, contexts, totals, distinct))

    def bits(self, text: bytes) -> float:
        """Code length of ``text`` in bits."""
        if not text:
            return 0.0
        prob = np.full(len(text), 1 / 256)
        for length, (grams, gram_counts, contexts, totals, distinct) in enumerate(self._tables):
            keys = _keys(text, length, self.order)
            count = _look_up(grams, gram_counts, keys)
            total = _look_up(contexts, totals, keys >> 8)
            kinds = _look_up(contexts, distinct, keys >> 8)
            seen = total > 0
            prob[seen] = ((count + kinds * prob) / np.maximum(total + kinds, 1))[seen]
        return float(-np.log2(prob).sum())

    def bits_per_byte(self, texts: Sequence[bytes]) -> float:
        """Mean code length over all bytes of ``texts``; NaN if they are empty."""
        size = sum(len(text) for text in texts)
        return sum(self.bits(text) for text in texts) / size if size else math.nan


def _keys(text: bytes, length: int, order: int) -> Keys:
    """The ``length`` bytes before each byte, and the byte itself, packed big-endian into one integer."""
    padded = np.frombuffer(b"\n" * order + text, dtype=np.uint8).astype(np.int64)
    keys = np.zeros(len(text), dtype=np.int64)
    for back in range(length, -1, -1):
        keys = (keys << 8) | padded[order - back : order - back + len(text)]
    return keys


def _look_up(keys: Keys, values: Keys, wanted: Keys) -> Keys:
    """``values`` at the ``wanted`` members of the sorted ``keys``; 0 where absent."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)
