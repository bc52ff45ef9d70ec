"""Faults on demand, for tests and for those who want to see how the server takes them.

Exists only under `--enable-fault-injection`. A fault waits here until the place that it concerns asks for
it; each one is given out as often as it was ordered. The engine's thread orders, the runner's worker
thread and the engine's thread ask.
"""

import threading
import time
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
        num_layers: layers of the model: a slow step takes its time in that many parts.
    """

    def __init__(self, num_layers: int = 1) -> None:
        self._num_layers = num_layers
        self._ordered = dict.fromkeys(STEP_FAULTS, 0)
        self._slow_ms = 0
        self._is_slow = False
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
        """Raise if the step is to fail; remember whether it is to be slow."""
        self._is_slow = self.take("slow_step")
        if self.take("fail_step"):
            raise InjectedError(f"step {step_id} was made to fail")

    def after_layer(self) -> None:
        """Take this layer's part of a slow step's time."""
        if self._is_slow:
            time.sleep(self._slow_ms / 1000 / self._num_layers)

    def spoil_logits(self, logits: "Tensor") -> None:
        """Make the first row (R, V) NaN, in place, if ordered."""
        if self.take("nan_logits"):
            logits[0].fill_(float("nan"))
