"""What the HTTP side counts and times itself. Prometheus sees it through `metrics`; here are plain numbers.

One object for the server, used from the event loop only. Observing a token costs a bisection.
"""

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from mambad.engine.counters import DURATION_BOUNDS_S, Buckets
from mambad.engine.outputs import Histogram, RequestTimes
from mambad.server.call_tally import CallTally
from mambad.server.errors import ApiError

FIRST_TOKEN_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0),
    *(40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0),
    *(7.5, 10.0, 20.0, 40.0, 80.0),
)
TOKEN_BOUNDS = tuple(float(4**power) for power in range(12))
HISTOGRAMS = {
    "time_to_first_token_s": FIRST_TOKEN_BOUNDS_S,
    "inter_token_latency_s": INTER_TOKEN_BOUNDS_S,
    "time_per_output_token_s": INTER_TOKEN_BOUNDS_S,
    "duration_s": DURATION_BOUNDS_S,
    "queue_s": DURATION_BOUNDS_S,
    "prefill_s": DURATION_BOUNDS_S,
    "decode_s": DURATION_BOUNDS_S,
    "prompt_tokens": TOKEN_BOUNDS,
    "generation_tokens": TOKEN_BOUNDS,
}
REJECTION_REASONS = (
    "context_length_exceeded",
    "draining",
    "engine_dead",
    "invalid",
    "model_loading",
    "model_not_found",
    "queue_full",
    "queue_timeout",
    "request_too_large",
)


class RequestMetrics:
    """Counters and histograms of requests.

    Attributes:
        http_requests: answers by (route, method, status).
        calls: by rank, answers that ended in calls of tools.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, dict[str, Buckets]] = {}
        self._rejected = Counter(dict.fromkeys(REJECTION_REASONS, 0))
        self.http_requests: Counter[tuple[str, str, int]] = Counter()
        self.calls: defaultdict[int, CallTally] = defaultdict(CallTally)

    def observe(self, rank: int, name: str, value: float) -> None:
        """Count a value in one of a rank's HISTOGRAMS."""
        self._of(rank)[name].observe(value)

    def count_rejection(self, error: ApiError) -> None:
        """Count a request that was answered with this error before it ran, if that is what happened."""
        reason = error.code or ""
        if reason in self._rejected:
            self._rejected[reason] += 1
        elif error.status in (400, 415):
            self._rejected["invalid"] += 1

    def _of(self, rank: int) -> dict[str, Buckets]:
        if rank not in self._buckets:
            self._buckets[rank] = {name: Buckets(bounds) for name, bounds in HISTOGRAMS.items()}
        return self._buckets[rank]

    def snapshot(self, num_ranks: int) -> "RequestSnapshot":
        """Return all numbers as they are now."""
        histograms = [
            {name: buckets.snapshot() for name, buckets in self._of(rank).items()}
            for rank in range(num_ranks)
        ]
        return RequestSnapshot(histograms, dict(self._rejected), dict(self.http_requests))


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """The numbers of RequestMetrics at one moment; `histograms` by rank."""

    histograms: list[dict[str, Histogram]]
    rejected: dict[str, int]
    http_requests: dict[tuple[str, str, int], int]


@dataclass(slots=True)
class ChoiceTimer:
    """Times one choice from the arrival of its request to its last token."""

    metrics: RequestMetrics
    rank: int
    num_prompt_tokens: int
    arrived_s: float
    _last_token_s: float | None = field(default=None, init=False)

    def tokens(self, num_tokens: int) -> None:
        """So many tokens have just come."""
        if num_tokens == 0:
            return
        now = time.monotonic()
        if self._last_token_s is None:
            self.metrics.observe(self.rank, "time_to_first_token_s", now - self.arrived_s)
        else:
            for _ in range(num_tokens):
                self.metrics.observe(
                    self.rank, "inter_token_latency_s", (now - self._last_token_s) / num_tokens
                )
        self._last_token_s = now

    def finished(self, num_generated: int) -> None:
        """The choice has ended by `stop` or `length`."""
        self.metrics.observe(self.rank, "duration_s", time.monotonic() - self.arrived_s)
        self.metrics.observe(self.rank, "prompt_tokens", self.num_prompt_tokens)
        self.metrics.observe(self.rank, "generation_tokens", num_generated)

    def ended_in_calls(self) -> None:
        """The choice that has ended consists of calls of tools."""
        self.metrics.calls[self.rank].count()

    def engine_times(self, times: RequestTimes, num_generated: int) -> None:
        """The engine has said how long it took over each part."""
        self.metrics.observe(self.rank, "queue_s", times.queue_s)
        self.metrics.observe(self.rank, "prefill_s", times.prefill_s)
        self.metrics.observe(self.rank, "decode_s", times.decode_s)
        if num_generated > 1:
            self.metrics.observe(self.rank, "time_per_output_token_s", times.decode_s / (num_generated - 1))
