"""The results of a benchmark: a JSON file that runs extend, and the Markdown tables made of it."""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


class Results:
    """A list of entries, one for each row of the table. Saved as a whole."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.entries: list[Entry] = []
        if path is not None and path.exists():
            self.entries = json.loads(path.read_text())["entries"]

    def entry(self, model: str, precision: str, system: str) -> Entry:
        """Return the row's entry, a new one when there is none."""
        key = {"model": model, "precision": precision, "system": system}
        for item in self.entries:
            if key.items() <= item.items():
                return item
        self.entries.append(key)
        return key

    def forget(self, kinds: list[str], models: list[str], precisions: list[str]) -> None:
        """Drop the measured values of these systems on these models."""
        for item in self.entries:
            wanted = item["model"] in models and item["precision"] in precisions
            if wanted and (item.get("kind") in kinds or "all" in kinds):
                for key in set(item) - {"model", "precision", "system", "kind"}:
                    del item[key]

    def save(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps({"entries": self.entries}, indent=1))


def is_complete(entry: Entry, names: list[str], options: argparse.Namespace) -> bool:
    """Return whether there is nothing left to measure for a row."""
    measured = entry.get("cells", {})
    return all(
        name in measured
        and (
            measured[name]["skipped"] is not None
            or len(measured[name]["values"]) >= options.repeats
            or sum(measured[name]["seconds"]) >= options.cell_seconds
        )
        for name in names
    )


def tables(entries: list[Entry]) -> list[str]:
    """Return the lines of the table, its notes, and the table of ratios."""
    entries = [item for item in entries if "cells" in item or "failed" in item]
    names = {name for item in entries for name in item.get("cells", {})}
    cells = sorted(names, key=lambda name: (name.split("_")[0], int(name.split("_")[1])))
    most = max((_rounds(item, name) for item in entries for name in cells), default=0)
    head = [name.replace("_", " ") for name in cells]
    head += ["of read bandwidth", "TTFT p50 ms", "p99 ms", "peak MiB", "ready s"]
    lines = _head(["model", "weights", "system"], head)
    for item in entries:
        row = [_cell(_median(item, name), _rounds(item, name) < most) for name in cells]
        row.append(_fraction(item))
        row += [_cell(item.get(key)) for key in ("ttft_p50_ms", "ttft_p99_ms", "peak_mib", "ready_s")]
        lines.append(_row([item["model"], item["precision"], item["system"], *row]))
    return [*lines, "", *_notes(entries, cells, most), "", *_ratios(entries, cells)]


def _notes(entries: list[Entry], cells: list[str], most: int) -> list[str]:
    lines = [f"Tokens a second are medians of {most} rounds; with * of fewer, because one takes long."]
    rates = [rate for item in entries for rate in item.get("read_bytes_per_s", ())]
    if rates:
        lines.append(f"Measured read bandwidth, median: {statistics.median(rates) / 1e9:.1f} GB/s.")
    for item in entries:
        title = f"- {item['model']} {item['precision']}, {item['system']}:"
        reasons = {name: cell["skipped"] for name, cell in item.get("cells", {}).items() if cell["skipped"]}
        if "failed" in item:
            lines.append(f"{title} {item['failed']}.")
        lines += [
            f"{title} {name.replace('_', ' ')}: {reason}."
            for name, reason in reasons.items()
            if name in cells
        ]
    return lines


def _ratios(entries: list[Entry], cells: list[str]) -> list[str]:
    """Return the table of mambad's speed divided by each peer's on the same weights."""
    lines = _head(["model", "weights", "mambad", "divided by"], [name.replace("_", " ") for name in cells])
    for own in entries:
        for peer in entries:
            is_pair = (own["model"], own["precision"]) == (peer["model"], peer["precision"])
            if not is_pair or own.get("kind") != "mambad" or peer.get("kind") == "mambad":
                continue
            values = []
            for name in cells:
                left, right = _median(own, name), _median(peer, name)
                values.append(f"{left / right:.2f}" if left and right else "–")
            lines.append(_row([own["model"], own["precision"], own["system"], peer["system"], *values]))
    return lines


def _median(item: Entry, name: str) -> float | None:
    values = item.get("cells", {}).get(name, {}).get("values")
    return statistics.median(values) if values else None


def _rounds(item: Entry, name: str) -> int:
    return len(item.get("cells", {}).get(name, {}).get("values", ()))


def _fraction(item: Entry) -> str:
    """Return the part of the memory's speed that one stream needs at least."""
    speed, rates = _median(item, "decode_1"), item.get("read_bytes_per_s")
    if speed is None or not rates:
        return "–"
    return f"{speed * item['least_bytes'] / statistics.median(rates):.0%}"


def _cell(value: float | None, is_short: bool = False) -> str:
    if value is None:
        return "–"
    return (f"{value:,.0f}" if value >= 100 else f"{value:.1f}") + ("*" if is_short else "")


def _head(texts: list[str], numbers: list[str]) -> list[str]:
    return [_row([*texts, *numbers]), "|" + "---|" * len(texts) + "---:|" * len(numbers)]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
