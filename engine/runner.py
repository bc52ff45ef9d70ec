"""What the scheduler and the engine need from whatever executes a batch. No torch.

Two implementations: `EagerRunner`, and the fake of the tests that keeps hashes for states.
"""

from collections.abc import Sequence
from typing import Protocol

from mambad.engine.batch import Batch, StepResult


class SwappedState(Protocol):
    """A request's state and blocks in host memory."""

    @property
    def num_bytes(self) -> int:
        """Bytes of host memory."""
        ...


class StepHandle(Protocol):
    """A launched step."""

    @property
    def step_id(self) -> int:
        """The batch's step_id."""
        ...

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the step has completed or failed; False when `timeout_s` seconds went by."""
        ...

    def result(self) -> StepResult:
        """Wait and return the step's results; raises what the step raised."""
        ...


class Runner(Protocol):
    """Executes batches in the order of their launch. One thread calls all of this."""

    @property
    def num_completed(self) -> int:
        """Highest step_id such that it and all steps before have completed (or failed)."""
        ...

    def launch(self, batch: Batch) -> StepHandle:
        """Fill the input buffers and start the step; returns before it has completed."""
        ...

    def swap_out(self, slot: int, block_ids: Sequence[int]) -> SwappedState:
        """Copy a slot's states and the blocks to host memory, at once. No launched step may use them."""
        ...

    def swap_in(self, swapped: SwappedState, slot: int, block_ids: Sequence[int]) -> None:
        """Copy them back into a slot and blocks, at once. No launched step may use these."""
        ...

    def clear_row(self, slot: int) -> None:
        """Set the slot's row of the block table to null: on the host now, on the device later."""
        ...

    def scrub(self, slot: int) -> None:
        """Zero a slot's states, at once. No launched step may use it."""
        ...

    def poison(self, slots: Sequence[int], block_ids: Sequence[int]) -> None:
        """Fill slots and blocks with NaN, at once. No launched step may use them, 0 excepted."""
        ...

    def close(self) -> None:
        """Finish the launched steps and end."""
        ...
