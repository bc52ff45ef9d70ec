"""What the engine counts since its start, and the fixed buckets of its histograms. No torch."""

from bisect import bisect_left
from dataclasses import dataclass, field

from mambad.engine.outputs import STEP_KINDS, Histogram

FINISH_REASONS = ("stop", "length", "tool_calls", "disconnect", "cancelled", "timeout", "error", "shutdown")
DURATION_BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKEN_BOUNDS = (1.0, 8.0, *(float(1 << power) for power in range(4, 15)))
ROW_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


class Buckets:
    """A histogram being filled."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value; a value equal to a bound falls into that bound's bucket."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self) -> Histogram:
        """Return the counts so far."""
        return Histogram(self._bounds, tuple(self._counts), self._sum)


@dataclass(slots=True)
class Counters:
    """Everything that only grows. Written by the scheduler and the engine, each its own fields."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    nonfinite: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISH_REASONS, 0))
    num_steps: int = 0
    graph_replays: dict[int, int] = field(default_factory=dict)
    graph_padding_rows: int = 0
    step_duration_s: dict[str, Buckets] = field(
        default_factory=lambda: {kind: Buckets(DURATION_BOUNDS_S) for kind in STEP_KINDS}
    )
    step_tokens: Buckets = field(default_factory=lambda: Buckets(STEP_TOKEN_BOUNDS))
    batch_rows: Buckets = field(default_factory=lambda: Buckets(ROW_BOUNDS))
