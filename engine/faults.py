"""Faults on demand, for tests and for those who want to see how the server takes them.

Exists only under `--enable-fault-injection`. A fault waits here until the place that it concerns asks for
it; each one is given out as often as it was ordered. The engine's thread orders, the runner's worker
thread and the engine's thread ask.
"""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

STEP_FAULTS = ("fail_step", "leak_slot", "nan_logits", "slow_step")
"""Faults that wait for the next step or release."""

IMMEDIATE_FAULTS = ("hang_engine", "kill_engine", "poison_free")
"""Faults that happen when they are ordered."""


class InjectedError(RuntimeError):
    """Raised inside a step by the fault `fail_step`."""


class FaultInjector:
    """What was ordered and has not happened yet.

    Args:
        num_parts: a slow step takes its time in that many parts.
        on_part: called after each: the sign that a slow step is alive.
    """

    def __init__(self, num_parts: int = 1, on_part: Callable[[], None] | None = None) -> None:
        self._num_parts = num_parts
        self._on_part = on_part or (lambda: None)
        self._ordered = dict.fromkeys(STEP_FAULTS, 0)
        self._slow_ms = 0
        self._lock = threading.Lock()

    def order(self, name: str, times: int, duration_ms: int = 0) -> None:
        """Have a step fault happen `times` times; `duration_ms` is how long a slow step takes in all."""
        with self._lock:
            self._ordered[name] += times
            if name == "slow_step":
                self._slow_ms = duration_ms

    def take(self, name: str) -> bool:
        """Whether the fault is to happen now; it counts as having happened."""
        with self._lock:
            is_due = self._ordered[name] > 0
            self._ordered[name] -= is_due
            return is_due

    def before_step(self, step_id: int) -> None:
        """Raise if the step is to fail; take the time of a slow one."""
        is_slow = self.take("slow_step")
        if self.take("fail_step"):
            raise InjectedError(f"step {step_id} was made to fail")
        for _ in range(self._num_parts if is_slow else 0):
            time.sleep(self._slow_ms / 1000 / self._num_parts)
            self._on_part()

    def spoil_logits(self, logits: "Tensor") -> None:
        """Make the first row (R, V) NaN, in place, if ordered."""
        if self.take("nan_logits"):
            logits[0].fill_(float("nan"))
