"""Statistics of a benchmark and their table. Pure functions of what was measured; prints nothing.

Terms: TTFT is from sending the request to its first token; ITL the gap between two chunks of one stream; E2E
from sending to the end. Percentiles are interpolated linearly between the two nearest ranks. A request that
failed counts as an error and in nothing else.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from mambad.server.bench_client import Exchange
from mambad.server.bench_load import Load


@dataclass(frozen=True, slots=True)
class Distribution:
    """Percentiles and mean in milliseconds; all 0 when nothing was measured."""

    p50: float
    p90: float
    p99: float
    mean: float

    @classmethod
    def of_seconds(cls, seconds: Iterable[float]) -> "Distribution":
        """Summarise durations."""
        values = sorted(1e3 * value for value in seconds)
        mean = sum(values) / len(values) if values else 0.0
        return cls(percentile(values, 50), percentile(values, 90), percentile(values, 99), mean)


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values by linear interpolation, 0 of none."""
    if not ascending:
        return 0.0
    rank = (len(ascending) - 1) * percent / 100
    low = math.floor(rank)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (ascending[high] - ascending[low]) * (rank - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One measurement's result.

    Attributes:
        concurrency, rate: as in Load.
        num_requests, num_errors: how many were sent, how many of them failed.
        errors: message → count.
        duration_s: from the first request to the end of the last.
        prompt_tokens, output_tokens: of the requests that succeeded.
        output_tokens_per_s, requests_per_s: over the whole duration.
        ttft_ms, itl_ms, e2e_ms: see the module.
        time_per_output_token_ms: (last chunk - first chunk) / (tokens - 1) of each request: unlike ITL not
            misled by a server that puts several tokens into a chunk.
    """

    concurrency: int | None
    rate: float | None
    num_requests: int
    num_errors: int
    errors: dict[str, int]
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    requests_per_s: float
    ttft_ms: Distribution
    itl_ms: Distribution
    time_per_output_token_ms: Distribution
    e2e_ms: Distribution

    @property
    def label(self) -> str:
        """How the load was made, for a table's first column."""
        return f"{self.concurrency}" if self.concurrency is not None else f"{self.rate:g}/s"

    def as_json(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        return asdict(self)


def summarise(load: Load, exchanges: Sequence[Exchange], duration_s: float) -> Summary:
    """Return the statistics of one measurement."""
    errors = Counter(item.error for item in exchanges if item.error is not None)
    good = [item for item in exchanges if item.error is None]
    timed = [item for item in good if item.arrivals_s]
    output_tokens = sum(_output_tokens(item) for item in good)
    several = [item for item in timed if _output_tokens(item) > 1]
    return Summary(
        concurrency=load.concurrency,
        rate=load.rate,
        num_requests=len(exchanges),
        num_errors=len(exchanges) - len(good),
        errors=dict(errors),
        duration_s=duration_s,
        prompt_tokens=sum(item.num_prompt_tokens or 0 for item in good),
        output_tokens=output_tokens,
        output_tokens_per_s=output_tokens / duration_s,
        requests_per_s=len(good) / duration_s,
        ttft_ms=Distribution.of_seconds(item.arrivals_s[0] - item.start_s for item in timed),
        itl_ms=Distribution.of_seconds(gap for item in timed for gap in _gaps(item.arrivals_s)),
        time_per_output_token_ms=Distribution.of_seconds(
            (item.arrivals_s[-1] - item.arrivals_s[0]) / (_output_tokens(item) - 1) for item in several
        ),
        e2e_ms=Distribution.of_seconds(item.end_s - item.start_s for item in good),
    )


def serve_table(summaries: Sequence[Summary]) -> list[str]:
    """Return the lines of a table, one row a measurement; times in milliseconds."""
    groups = [f"{name} {at}" for name in ("TTFT", "ITL", "E2E") for at in ("p50", "p90", "p99")]
    header = ["load", "requests", "errors", "tok/s", "req/s", *groups]
    rows = []
    for item in summaries:
        times = [
            f"{value:.1f}"
            for part in (item.ttft_ms, item.itl_ms, item.e2e_ms)
            for value in (part.p50, part.p90, part.p99)
        ]
        counts = [item.label, str(item.num_requests), str(item.num_errors)]
        rows.append([*counts, f"{item.output_tokens_per_s:.1f}", f"{item.requests_per_s:.2f}", *times])
    return table(header, rows)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with the columns aligned: the first to the left, numbers to the right."""
    cells = [header, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for row in cells:
        first = row[0].ljust(widths[0])
        others = (text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join((first, *others)))
    return lines


def error_lines(errors: Mapping[str, int]) -> list[str]:
    """Return one line for each kind of failure, the most frequent first."""
    return [f"error {count} ×: {text}" for text, count in sorted(errors.items(), key=lambda item: -item[1])]


def _output_tokens(exchange: Exchange) -> int:
    count = exchange.num_output_tokens
    return len(exchange.arrivals_s) if count is None else count


def _gaps(times: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]
