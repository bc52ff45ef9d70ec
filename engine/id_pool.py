"""Ids 1..capacity, each with one owner, a generation and a state: the ledger behind slots and blocks.

    FREE → RESERVED(owner) → ACTIVE(owner) → QUARANTINED(until a step has completed) → FREE
    RESERVED or ACTIVE, but nobody knows the owner any more → LEAKED → (next audit) QUARANTINED → FREE

Invariants: every id is in exactly one state; the counts per state add up to the capacity; an id has an
owner exactly while it is RESERVED or ACTIVE; a handle is good until its owner lets go. Id 0 is the null
id: it belongs to nobody and is never handed out. Only `CacheManager` uses this. No torch.
"""

from collections import deque
from collections.abc import Iterable, Set
from enum import IntEnum
from typing import NamedTuple

NOBODY = 0
UNKNOWN = -1


class IdState(IntEnum):
    """Where an id is in its life."""

    FREE = 0
    RESERVED = 1
    ACTIVE = 2
    QUARANTINED = 3
    LEAKED = 4


class Handle(NamedTuple):
    """An id together with the generation in which it was handed out."""

    id: int
    generation: int


class PoolError(Exception):
    """A stale handle was used, or an owner released what it does not hold: a bug, never a user's fault."""


class Leak(NamedTuple):
    """An id whose owner nobody knows any more."""

    id: int
    last_owner: int


class IdPool:
    """The ledger of one kind of id. Not thread-safe: the engine's thread alone uses it.

    Args:
        name: what the ids stand for, for messages.
        capacity: number of ids.
    """

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.capacity = capacity
        self._states = bytearray(capacity + 1)
        self._generations = [0] * (capacity + 1)
        self._owners = [NOBODY] * (capacity + 1)
        self._since = [0.0] * (capacity + 1)
        self._free = list(range(capacity, 0, -1))
        self._quarantine: deque[tuple[int, int]] = deque()
        self._leaked: set[int] = set()
        self._counts = [0] * len(IdState)
        self._counts[IdState.FREE] = capacity

    def count(self, state: IdState) -> int:
        """Return how many ids are in `state`. O(1)."""
        return self._counts[state]

    def reserve(self, num_ids: int, owner: int, now: float = 0.0) -> list[Handle] | None:
        """Take `num_ids` free ids for `owner` (> 0), all or none; None when there are too few."""
        if num_ids > len(self._free):
            return None
        handles = []
        for _ in range(num_ids):
            taken = self._free.pop()
            self._owners[taken] = owner
            self._move(taken, IdState.RESERVED, now)
            handles.append(Handle(taken, self._generations[taken]))
        return handles

    def activate(self, handles: Iterable[Handle], now: float = 0.0) -> None:
        """Mark reserved ids as in use. Raises: PoolError for a stale handle or one not reserved."""
        for handle in handles:
            self.check(handle)
            if self._states[handle.id] != IdState.RESERVED:
                raise PoolError(f"{self.name} {handle.id} is {self.state(handle.id).name}, not RESERVED")
            self._move(handle.id, IdState.ACTIVE, now)

    def release(
        self, handle: Handle, owner: int, until_step: int, completed_step: int, now: float = 0.0
    ) -> bool:
        """Take an id back from its owner, into quarantine or at once among the free ones.

        Args:
            handle: what `owner` holds.
            owner: whose claim ends.
            until_step: last launched step that may still read or write the id.
            completed_step: last step known to have completed.
            now: time in seconds, for reports.

        Returns:
            Whether the id is free now.

        Raises:
            PoolError: the handle is stale, or `owner` does not hold it.
        """
        self.check(handle)
        if self._owners[handle.id] != owner:
            raise PoolError(f"{self.name} {handle.id} is held by {self._owners[handle.id]}, not by {owner}")
        return self._retire(handle.id, until_step, completed_step, now)

    def settle(self, completed_step: int, now: float = 0.0) -> list[int]:
        """Free, and return, the quarantined ids whose step has completed, in the order in which they came.

        An id behind one that waits for a later step waits with it: never too early, at most a step late.
        """
        freed = []
        while self._quarantine and self._quarantine[0][0] <= completed_step:
            _, settled = self._quarantine.popleft()
            self._free.append(settled)
            self._move(settled, IdState.FREE, now)
            freed.append(settled)
        return freed

    def audit(self, live_owners: Set[int], last_launched_step: int, now: float = 0.0) -> list[Leak]:
        """Look at every id: mark as LEAKED what no live owner holds, and reclaim what leaked before.

        Args:
            live_owners: the owners that exist.
            last_launched_step: reclaimed ids stay in quarantine until it has completed.
            now: time in seconds, for reports.

        Returns:
            The leaks found by this audit.
        """
        for leaked in sorted(self._leaked):
            self._retire(leaked, last_launched_step, -1, now)
        self._leaked.clear()
        leaks = [
            Leak(id_, owner)
            for id_, owner in enumerate(self._owners)
            if owner != NOBODY and owner not in live_owners
        ]
        for leak in leaks:
            self._owners[leak.id] = NOBODY
            self._leaked.add(leak.id)
            self._move(leak.id, IdState.LEAKED, now)
        return leaks

    def forget_owner(self, handle: Handle) -> None:
        """Lose track of who holds an id: the fault that `audit` exists to find."""
        self.check(handle)
        self._owners[handle.id] = UNKNOWN

    def check(self, handle: Handle) -> None:
        """Raise PoolError unless the handle is of the id's present generation and the id is held."""
        if not 0 < handle.id <= self.capacity:
            raise PoolError(f"{self.name} {handle.id} is not in 1..{self.capacity}")
        if self._generations[handle.id] != handle.generation:
            raise PoolError(
                f"{self.name} {handle.id} is of generation {self._generations[handle.id]}, "
                f"the handle of generation {handle.generation}: stale"
            )
        if self._states[handle.id] not in (IdState.RESERVED, IdState.ACTIVE):
            raise PoolError(f"{self.name} {handle.id} is {self.state(handle.id).name}: not held")

    def is_conserved(self) -> bool:
        """Whether the counts add up to the capacity and agree with the lists behind them. O(1)."""
        return (
            sum(self._counts) == self.capacity
            and self._counts[IdState.FREE] == len(self._free)
            and self._counts[IdState.QUARANTINED] == len(self._quarantine)
            and self._counts[IdState.LEAKED] == len(self._leaked)
        )

    def free_ids(self) -> list[int]:
        """Return the ids that are free."""
        return sorted(self._free)

    def state(self, id_: int) -> IdState:
        """Return the state of an id."""
        return IdState(self._states[id_])

    def generation(self, id_: int) -> int:
        """Return how often an id has been given back."""
        return self._generations[id_]

    def owner(self, id_: int) -> int:
        """Return who holds an id; NOBODY when it is not held."""
        return self._owners[id_]

    def since(self, id_: int) -> float:
        """Return when an id came into its present state, as `now` was given."""
        return self._since[id_]

    def _retire(self, id_: int, until_step: int, completed_step: int, now: float) -> bool:
        self._generations[id_] += 1
        self._owners[id_] = NOBODY
        if until_step <= completed_step:
            self._free.append(id_)
            self._move(id_, IdState.FREE, now)
            return True
        self._quarantine.append((until_step, id_))
        self._move(id_, IdState.QUARANTINED, now)
        return False

    def _move(self, id_: int, state: IdState, now: float) -> None:
        self._counts[self._states[id_]] -= 1
        self._counts[state] += 1
        self._states[id_] = state
        self._since[id_] = now
