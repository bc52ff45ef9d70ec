"""Keeps data-parallel ranks in step: what experts spread over ranks will need.

Every step begins with one collective in which each rank says whether it has work, how many decode rows it
would pad to, and which call to work it has heard last. A rank without work computes a step of padding, of
the size that all agree on. When nobody has work, and all have heard the same calls, all leave together and
wait on their inboxes; the next call, which the front end sends to every rank, brings all of them back.

A call is a number that only grows: one that a rank has heard before it left can't bring it back alone. A
rank that dies leaves the others waiting here; the front end sees its end by the process handle and ends
them, so nothing waits for a time-out of the collective.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

_COLLECTIVE_TIMEOUT = timedelta(days=365)
_POLL_S = 0.0002


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the ranks found out together.

    Attributes:
        has_work: whether any rank has work.
        num_rows: largest padded number of decode rows.
        is_over: whether all may leave: nobody has work, and all have heard the same calls.
    """

    has_work: bool
    num_rows: int
    is_over: bool


class Lockstep:
    """This rank's side.

    Args:
        rank, num_ranks: who we are, of how many.
        rendezvous: a file that all ranks can reach, not there at first.
    """

    def __init__(self, rank: int, num_ranks: int, rendezvous: Path) -> None:
        self._values = torch.zeros(4, dtype=torch.int64)
        self._heard = 0
        self._left_at = 0
        dist.init_process_group(
            "gloo",
            init_method=f"file://{rendezvous}",
            rank=rank,
            world_size=num_ranks,
            timeout=_COLLECTIVE_TIMEOUT,
        )

    @property
    def is_joined(self) -> bool:
        """Whether this rank has been called since it last left."""
        return self._heard > self._left_at

    def call(self, number: int) -> None:
        """Hear a call to work."""
        self._heard = max(self._heard, number)

    def agree(self, has_work: bool, num_rows: int, on_wait: Callable[[], None]) -> Agreement:
        """Exchange with all ranks; the first act of every step, before anything that can raise.

        Args:
            has_work: whether this rank has work.
            num_rows: decode rows that this rank would pad to.
            on_wait: called again and again while the others are busy.
        """
        self._values[0], self._values[1] = int(has_work), num_rows
        self._values[2], self._values[3] = self._heard, -self._heard
        work = dist.all_reduce(self._values, dist.ReduceOp.MAX, async_op=True)
        assert work is not None
        while not work.is_completed():
            on_wait()
            time.sleep(_POLL_S)
        any_work, largest, latest, earliest = self._values.tolist()
        is_over = not any_work and latest == -earliest
        if is_over:
            self._left_at = self._heard
        return Agreement(bool(any_work), largest, is_over)

    def close(self) -> None:
        """Leave for good."""
        dist.destroy_process_group()
