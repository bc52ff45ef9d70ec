"""Slots and KV blocks of the live requests: reserve, grow, release, audit.

The only user of the two id pools. A reservation is one transaction: a request gets its slot and all the
blocks that it asked for, or nothing. Whatever a request holds stands in its `Allocation`; giving it back
is one call that empties it. No torch.
"""

from collections.abc import Set
from dataclasses import dataclass, field
from typing import NamedTuple

from mambad.engine.id_pool import Handle, IdPool, IdState, Leak
from mambad.engine.outputs import BLOCK_STATES, SLOT_STATES


@dataclass(slots=True)
class Allocation:
    """What one request holds.

    Attributes:
        slot: its slot.
        blocks: its blocks; block i holds tokens [i * block_size, (i + 1) * block_size).
    """

    slot: Handle
    blocks: list[Handle] = field(default_factory=list)

    @property
    def block_ids(self) -> tuple[int, ...]:
        """The ids of the blocks, in order."""
        return tuple(block.id for block in self.blocks)


class LeakReport(NamedTuple):
    """A leak that an audit found: of a `slot` or a `block`, and which."""

    kind: str
    leak: Leak


class CacheManager:
    """Hands out slots and blocks, and takes them back.

    Args:
        num_slots: slots of the state pool, the null slot not counted.
        num_blocks: blocks of the KV pool, the null block not counted; 0 for a model without attention.
        block_size: tokens a block.
    """

    def __init__(self, num_slots: int, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.has_blocks = num_blocks > 0
        self.slots = IdPool("slot", num_slots)
        self.blocks = IdPool("block", num_blocks)
        self._held: dict[int, Allocation] = {}
        self.num_leaked = 0
        self.num_reclaimed = 0
        self.num_audits = 0

    @property
    def has_free_slot(self) -> bool:
        """Whether a slot could be reserved now."""
        return self.slots.count(IdState.FREE) > 0

    @property
    def has_quarantined_blocks(self) -> bool:
        """Whether blocks become free when launched steps complete."""
        return self.blocks.count(IdState.QUARANTINED) > 0

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size) if self.has_blocks else 0

    def allocation(self, key: int) -> Allocation:
        """Return what the request `key` holds. Raises: KeyError when it holds nothing."""
        return self._held[key]

    def holds(self, key: int) -> bool:
        """Whether the request `key` holds a slot."""
        return key in self._held

    def admit(self, key: int, num_tokens: int, now: float) -> Allocation | None:
        """Reserve a slot, and blocks for `num_tokens` tokens; None, and nothing held, if there is no room."""
        slot = self.slots.reserve(1, key, now)
        if slot is None:
            return None
        blocks = self.blocks.reserve(self.num_blocks_for(num_tokens), key, now)
        if blocks is None:
            self.slots.release(slot[0], key, until_step=0, completed_step=0, now=now)
            return None
        allocation = self._held[key] = Allocation(slot[0], blocks)
        return allocation

    def activate(self, key: int, now: float) -> None:
        """Turn a reservation into use: the first step that works on it is about to be launched."""
        allocation = self._held[key]
        self.slots.activate([allocation.slot], now)
        self.blocks.activate(allocation.blocks, now)

    def grow(self, key: int, num_tokens: int, now: float) -> list[Handle] | None:
        """Give a request blocks for `num_tokens` tokens in all.

        Returns:
            The new blocks, perhaps none; None, and nothing taken, if there are too few.
        """
        allocation = self._held[key]
        num_missing = self.num_blocks_for(num_tokens) - len(allocation.blocks)
        if num_missing <= 0:
            return []
        new = self.blocks.reserve(num_missing, key, now)
        if new is None:
            return None
        self.blocks.activate(new, now)
        allocation.blocks.extend(new)
        return new

    def release(self, key: int, until_step: int, completed_step: int, now: float) -> bool:
        """Take back all that a request holds; what launched steps still use goes to quarantine.

        Returns:
            Whether the slot is free now.

        Raises:
            KeyError: it holds nothing (released twice, or never admitted).
        """
        allocation = self._held.pop(key)
        for block in allocation.blocks:
            self.blocks.release(block, key, until_step, completed_step, now)
        return self.slots.release(allocation.slot, key, until_step, completed_step, now)

    def lose(self, key: int, until_step: int, completed_step: int, now: float) -> None:
        """Release a request's blocks and lose its slot: the fault that the audit exists to find."""
        allocation = self._held.pop(key)
        for block in allocation.blocks:
            self.blocks.release(block, key, until_step, completed_step, now)
        self.slots.forget_owner(allocation.slot)

    def free_ids(self) -> tuple[list[int], list[int]]:
        """Return the free slots and the free blocks."""
        return self.slots.free_ids(), self.blocks.free_ids()

    def settle(self, completed_step: int, now: float) -> list[int]:
        """Free what was in quarantine until `completed_step`; return the slots among it."""
        self.blocks.settle(completed_step, now)
        return self.slots.settle(completed_step, now)

    def audit(self, live_keys: Set[int], last_launched_step: int, now: float) -> list[LeakReport]:
        """Check that a live request holds each slot and block; mark and count leaks, reclaim earlier ones."""
        reports: list[LeakReport] = []
        live_owners = live_keys & self._held.keys()
        for pool in (self.slots, self.blocks):
            self.num_reclaimed += pool.count(IdState.LEAKED) if pool is self.slots else 0
            leaks = pool.audit(live_owners, last_launched_step, now)
            self.num_leaked += len(leaks) if pool is self.slots else 0
            reports.extend(LeakReport(pool.name, leak) for leak in leaks)
        self.num_audits += 1
        return reports

    def is_conserved(self) -> bool:
        """Whether slots and blocks add up. O(1)."""
        return self.slots.is_conserved() and self.blocks.is_conserved()

    def slot_counts(self) -> dict[str, int]:
        """Return the slots per state, under the names of the metrics."""
        return {name: _count(self.slots, name) for name in SLOT_STATES}

    def block_counts(self) -> dict[str, int]:
        """Return the blocks per state, under the names of the metrics; a reserved block counts as active."""
        counts = {name: _count(self.blocks, name) for name in BLOCK_STATES}
        counts["active"] += self.blocks.count(IdState.RESERVED)
        return counts

    def usage_ratio(self) -> float:
        """Return the larger of the used shares of slots and blocks, between 0 and 1."""
        shares = [
            1.0 - pool.count(IdState.FREE) / pool.capacity
            for pool in (self.slots, self.blocks)
            if pool.capacity
        ]
        return max(shares)


def _count(pool: IdPool, name: str) -> int:
    states = {state.name.lower(): state for state in IdState}
    return pool.count(states[name]) if name in states else 0
