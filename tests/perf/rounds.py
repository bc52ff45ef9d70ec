"""Measures all systems on one checkpoint at one precision, in turns, and keeps every single value.

A cell is one number of the table: `decode_8` or `prefill_512`. What it needs in time decides how often it is
measured: a peer that takes half a minute for a cell is steady enough after two.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from peers import Peer
from process import PeerError
from results import Results, is_complete
from systems import System, systems
from traffic import least_bytes

from mambad.engine.op_profile import read_bandwidth
from mambad.server.bench_report import percentile

BANDWIDTH_BYTES = 256 << 20


def cells(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Return kind and size of what is measured, the quick before the slow."""
    sizes = [("decode", batch) for batch in sorted(options.concurrency)]
    return sizes + [("prefill", tokens) for tokens in sorted(options.prefill)]


class Group:
    """One checkpoint at one precision."""

    def __init__(
        self,
        folder: Path,
        precision: str,
        options: argparse.Namespace,
        results: Results,
        say: Callable[[str], None],
    ) -> None:
        self._options = options
        self._results = results
        self._say = say
        self.title = f"{folder.name} {precision}"
        self._cells = cells(options)
        self._names = [f"{kind}_{size}" for kind, size in self._cells]
        self._entries = {}
        self._systems = []
        for system in systems(folder, precision, options):
            entry = results.entry(folder.name, precision, system.name)
            if system.kind not in options.redo and is_complete(entry, self._names, options):
                continue
            entry |= {"kind": system.kind, "version": system.version, "threads": options.threads}
            entry["least_bytes"] = least_bytes(folder, precision)
            self._entries[system.name] = entry
            self._systems.append(system)

    @property
    def systems(self) -> list[System]:
        """What is still to be measured."""
        return self._systems

    def run(self) -> None:
        with ExitStack() as cleanup:
            running = [item for system in self._systems if (item := self._start(system, cleanup))]
            for number in range(self._options.repeats):
                self._measure_bandwidth()
                shift = number % len(running) if running else 0
                for name, peer in running[shift:] + running[:shift]:
                    begin = time.monotonic()
                    self._round(name, peer)
                    if (took := time.monotonic() - begin) > 0.1:
                        self._say(f"{self.title} round {number + 1}: {name}, {took:.0f} s")
                self._results.save()
            for name, peer in running:
                self._finish(name, peer)
            self._results.save()

    def _start(self, system: System, cleanup: ExitStack) -> tuple[str, Peer] | None:
        entry = self._entries[system.name]
        self._say(f"{self.title}: starting {system.name}")
        try:
            peer = system.start()
            if peer.process is not None:
                cleanup.callback(peer.process.stop)
            peer.decode(1)  # warms up
        except PeerError as failure:
            self._say(f"{self.title}: {system.name}: {failure}")
            entry["failed"] = str(failure)
            return None
        entry.pop("failed", None)
        if peer.process is not None:
            entry["ready_s"] = peer.process.ready_s
        return system.name, peer

    def _measure_bandwidth(self) -> None:
        rate = read_bandwidth(self._options.threads, BANDWIDTH_BYTES, 3)
        for entry in self._entries.values():
            entry.setdefault("read_bytes_per_s", []).append(rate)

    def _round(self, name: str, peer: Peer) -> None:
        before = None
        for kind, size in self._cells:
            cell = (
                self._entries[name]
                .setdefault("cells", {})
                .setdefault(f"{kind}_{size}", {"values": [], "seconds": [], "skipped": None})
            )
            if before is not None and before[0] == kind:
                self._foresee(cell, before[2], size / before[1])
            if not cell["skipped"] and self._has_time(cell):
                begin = time.monotonic()
                try:
                    cell["values"].append(peer.decode(size) if kind == "decode" else peer.prefill(size))
                except PeerError as failure:
                    cell["skipped"] = str(failure)
                cell["seconds"].append(time.monotonic() - begin)
            before = (kind, size, cell)

    def _foresee(self, cell: dict, before: dict, factor: float) -> None:
        """Skip a cell that would take too long, going by the one before it."""
        if cell["values"] or cell["skipped"]:
            return
        if before["skipped"] or not before["seconds"]:
            cell["skipped"] = before["skipped"] or "not tried"
        elif (guess := 0.7 * factor * before["seconds"][-1]) > self._options.cell_limit:
            cell["skipped"] = f"would take about {guess:.0f} s"

    def _has_time(self, cell: dict) -> bool:
        return (
            len(cell["values"]) < self._options.repeats and sum(cell["seconds"]) < self._options.cell_seconds
        )

    def _finish(self, name: str, peer: Peer) -> None:
        """Measure what is measured once: the load of random arrivals, and memory, which includes it."""
        entry = self._entries[name]
        if peer.first_tokens is not None and self._options.arrivals and "ttft_p50_ms" not in entry:
            try:
                seconds = peer.first_tokens(self._options.rate, self._options.arrivals)
            except PeerError as failure:
                self._say(f"{self.title}: {name} under load: {failure}")
                seconds = []
            times = sorted(1e3 * value for value in seconds)
            if times:
                entry |= {"ttft_p50_ms": percentile(times, 50), "ttft_p99_ms": percentile(times, 99)}
                entry |= {"rate": self._options.rate, "arrivals": self._options.arrivals}
        if peer.process is not None:
            entry["peak_mib"] = peer.process.peak_mib()
