"""Requests that wait for a slot, in the order in which they are admitted. No torch."""

import heapq

from mambad.engine.request import Request, RequestStatus


class WaitingQueue:
    """A priority queue of requests: most urgent first; preempted before new; then first come, first served.

    Nobody overtakes the head: when it does not fit, nothing is admitted, so nobody starves within a
    priority. Removal from the middle is lazy.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, bool, int, Request]] = []
        self._keys: set[int] = set()
        self.num_preempted = 0
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._keys)

    def push(self, request: Request) -> None:
        """Put a WAITING or PREEMPTED request in line."""
        is_new = request.status is RequestStatus.WAITING
        heapq.heappush(self._heap, (request.priority, is_new, request.key, request))
        self._keys.add(request.key)
        self._count(request, 1)

    def head(self) -> Request | None:
        """Return who is next, or None."""
        while self._heap and self._heap[0][3].key not in self._keys:
            heapq.heappop(self._heap)
        return self._heap[0][3] if self._heap else None

    def remove(self, request: Request) -> None:
        """Take a request out of the line, wherever it stands. Call it before its status changes."""
        self._keys.remove(request.key)
        self._count(request, -1)
        if self._heap and self._heap[0][3] is request:
            heapq.heappop(self._heap)

    def new_requests(self) -> list[Request]:
        """Return those that were never admitted."""
        return [
            request
            for _, is_new, key, request in self._heap
            if is_new and key in self._keys and request.status is RequestStatus.WAITING
        ]

    def _count(self, request: Request, sign: int) -> None:
        if request.status is RequestStatus.PREEMPTED:
            self.num_preempted += sign
        else:
            self.num_tokens += sign * request.num_prompt_tokens
