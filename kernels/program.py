"""What `Ops.record` returns: ops that are computed again and again by one call."""

from typing import Protocol


class Program(Protocol):
    """Recorded ops, to be computed again and again; see `Ops.record`."""

    @property
    def num_calls(self) -> int:
        """Number of recorded calls."""

    @property
    def num_bytes(self) -> int:
        """Memory of the outputs, in bytes."""

    def run(self, num_rows: int) -> None:
        """Compute the recorded ops in order, for the first num_rows rows (tokens) of every tensor.

        The bits are those of the same calls made one by one. Raises what the ops raise; what the calls before
        the failing one did stays done.
        """

    def run_timed(self, num_rows: int) -> list[float]:
        """`run`, and return the seconds that each call took."""
