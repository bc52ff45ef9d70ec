"""What `bench offline` found, as values and as tables. Measures and prints nothing."""

from dataclasses import asdict, dataclass
from typing import Any

from mambad.server.bench_report import table

OUTSIDE = "outside the ops"
"""Scheduling, input buffers, embedding, residual adds and sampling."""


@dataclass(frozen=True, slots=True)
class OfflineSizes:
    """What is measured: every batch size with prompts and answers of so many tokens."""

    batches: tuple[int, ...]
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class OpShare:
    """One op's part of the steps of one kind; `bytes_per_s` is None for ops that move no counted bytes."""

    op: str
    calls: int
    total_ms: float
    share: float
    num_bytes: int
    bytes_per_s: float | None
    bandwidth_fraction: float | None


@dataclass(frozen=True, slots=True)
class StepProfile:
    """All steps of one kind (`prefill` or `decode`); the shares add up to 1."""

    kind: str
    num_steps: int
    total_ms: float
    ops: tuple[OpShare, ...]


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """Results of one batch size; with a profile the times contain the stop-watch (microseconds an op)."""

    batch: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    step_ms_p50: float
    step_ms_p99: float
    profiles: tuple[StepProfile, ...]


@dataclass(frozen=True, slots=True)
class OfflineReport:
    """All runs; `read_bandwidth` in bytes a second is measured only for a profile."""

    plan: tuple[str, ...]
    sizes: OfflineSizes
    read_bandwidth: float | None
    runs: tuple[OfflineRun, ...]

    def as_json(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        return asdict(self)


def offline_table(report: OfflineReport) -> list[str]:
    """Return the lines of the table of all batch sizes."""
    sizes = report.sizes
    header = ["batch", f"prefill {sizes.input_tokens} tok/s", "decode tok/s", "step ms p50", "p99"]
    rows = [
        [
            str(item.batch),
            f"{item.prefill_tokens_per_s:.1f}",
            f"{item.decode_tokens_per_s:.1f}",
            f"{item.step_ms_p50:.2f}",
            f"{item.step_ms_p99:.2f}",
        ]
        for item in report.runs
    ]
    lines = table(header, rows)
    if report.read_bandwidth is not None:
        lines.append(
            f"read bandwidth, measured in this run: {report.read_bandwidth / 1e9:.1f} GB/s (above: cache)"
        )
    return lines


def profile_table(profile: StepProfile, batch: int) -> list[str]:
    """Return the lines of the table of one kind of step."""
    header = [f"{profile.kind}, {batch} rows", "calls", "ms a step", "share", "MB a step", "GB/s", "of limit"]
    rows = []
    for item in profile.ops:
        moved = ["-", "-", "-"]
        if item.bytes_per_s is not None and item.bandwidth_fraction is not None:
            mega = item.num_bytes / profile.num_steps / 1e6
            moved = [f"{mega:.2f}", f"{item.bytes_per_s / 1e9:.2f}", f"{item.bandwidth_fraction:.0%}"]
        time_ms = f"{item.total_ms / profile.num_steps:.3f}"
        rows.append([item.op, str(item.calls), time_ms, f"{item.share:.1%}", *moved])
    return table(header, rows)
