"""Tells answers that ended in calls of tools from other stops, which to the engine are the same.

The engine counts every end in its reports; that an answer was a call is known here only, a moment earlier or
later. What is shown always adds up to the engine's count, and no series ever falls, whenever it is read.
"""

from collections.abc import Mapping

STOP, CALLS = "stop", "tool_calls"


class CallTally:
    """The answers of one rank that ended in calls."""

    def __init__(self) -> None:
        self._num_calls = 0
        self._num_stops_shown = 0

    def count(self) -> None:
        """One more answer has ended in calls."""
        self._num_calls += 1

    def split(self, finished: Mapping[str, int]) -> dict[str, int]:
        """Return the engine's counts by reason, with calls apart from stops.

        A stop that was shown as such before it was known to be a call stays one; the next one is a call
        instead.
        """
        num_ends = finished.get(STOP, 0)
        num_stops = min(max(num_ends - self._num_calls, self._num_stops_shown), num_ends)
        self._num_stops_shown = num_stops
        return {**finished, STOP: num_stops, CALLS: num_ends - num_stops}
