"""Finds stop strings in text that arrives piece by piece, and holds back no more than it must.

Pure. Shows all text except the longest end that may still become a stop string. The result does not depend on
how the text was cut into pieces: the stop string that is complete first wins, of several that are complete at
the same character the longest.
"""

from collections.abc import Sequence


class StopMatcher:
    """Matches one choice's text against its stop strings.

    Args:
        stops: non-empty strings; none = everything is shown at once.
        is_included: whether a stop string is part of the shown text.

    Attributes:
        matched: the stop string that was found. Nothing may be pushed after it.
    """

    def __init__(self, stops: Sequence[str] = (), is_included: bool = False) -> None:
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._is_included = is_included
        self._failures = [_failure_table(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)  # characters of each stop that the text ends with
        self._first_chars = frozenset(stop[0] for stop in self._stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Take the next piece; return the text that may be shown."""
        if not self._held and self._first_chars.isdisjoint(piece):
            return piece
        text = self._held + piece
        for end, char in enumerate(piece, start=len(self._held) + 1):
            for index, stop in enumerate(self._stops):
                state = self._advance(index, char)
                if state == len(stop):
                    self.matched = stop
                    self._held = ""
                    return text[: end if self._is_included else end - state]
        num_held = max(self._states)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def flush(self) -> str:
        """Return what is held: no stop string can be completed any more."""
        held, self._held = self._held, ""
        self._states = [0] * len(self._stops)
        return held

    def _advance(self, index: int, char: str) -> int:
        """Knuth, Morris and Pratt's automaton: one step of one stop string."""
        stop, failure, state = self._stops[index], self._failures[index], self._states[index]
        while state and stop[state] != char:
            state = failure[state - 1]
        if stop[state] == char:
            state += 1
        self._states[index] = state
        return state


def _failure_table(stop: str) -> list[int]:
    """Return, for each prefix, the length of its longest proper border."""
    table = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = table[length - 1]
        if stop[i] == stop[length]:
            length += 1
        table[i] = length
    return table
