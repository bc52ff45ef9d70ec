"""`make bench`: mambad and whichever peers are there, on the same random checkpoints, one table.

Every system computes with one thread (--threads); front ends and this client have the other core, to which
the client is kept. All systems are started, then measured in turns, and the table shows the median of the
rounds. Decode is tokens a second while all streams are running, prefill one prompt over the time to its first
token, both over HTTP where there is HTTP. `--output FILE` keeps every value, and the next run goes on there.
"""

import argparse
import os
import sys
import time

import flags
import shapes
from process import ALL_CORES, stop_when_told
from results import Results, tables
from rounds import Group, cells

ROUND_S = {"mambad": 8, "llama.cpp": 36, "llama-bench": 34, "vllm": 25, "transformers": 45}
START_S = {"mambad": 6, "llama.cpp": 3, "llama-bench": 1, "vllm": 90, "transformers": 8}
"""What a round of all cells of a 130M model and a start take about, for the estimate."""

LARGE = 2.5
"""How many times as long the larger models take."""


def main() -> int:
    options = flags.parse(__doc__.splitlines()[0])
    if options.markdown:
        print(*tables(Results(options.markdown).entries), sep="\n")
        return 0
    stop_when_told()
    options.folder.mkdir(parents=True, exist_ok=True)
    if len(ALL_CORES) > 1 and not options.no_pin:
        os.sched_setaffinity(0, {max(ALL_CORES)})
    results = Results(options.output)
    if options.redo:
        results.forget(options.redo.split(","), options.models, options.precisions)
    groups = []
    for name in options.models:
        folder = shapes.write(options.checkpoints, name)
        groups += [Group(folder, precision, options, results, say) for precision in options.precisions]
    for number, group in enumerate(groups):
        minutes = sum(seconds(item, options) for item in groups[number:]) / 60
        say(f"group {number + 1} of {len(groups)}; all that is left takes about {minutes:.0f} min")
        group.run()
    wanted = [
        item for item in results.entries
        if item["model"] in options.models and item["precision"] in options.precisions
    ]  # fmt: skip
    print(*tables(wanted), sep="\n")
    return 0


def seconds(group: Group, options: argparse.Namespace) -> float:
    """Return about how long a group takes."""
    share = len(cells(options)) / 6 if max(options.concurrency) > 32 else 0.2
    size = 1.0 if "130m" in group.title else LARGE
    total = 0.0
    for system in group.systems:
        one = ROUND_S[system.kind] * share * size
        has_load = system.kind in ("mambad", "llama.cpp", "vllm")
        total += min(options.repeats * one, 0.75 * one + 2.5 * options.cell_seconds)
        total += START_S[system.kind] * size + has_load * options.arrivals / options.rate
    return total


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
