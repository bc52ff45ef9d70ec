"""`make bench`: mambad and whichever peers are there, on the same random checkpoints, one table.

    python tests/perf/bench.py [--models NAME,...] [--dtypes float32,bfloat16] [--repeats 5]
        [--llama-python PATH] [--llama-url URL] [--no-transformers] [--output FILE.json]

Every system computes with one thread; for servers the front end and this client have the other core. All are
started, then measured in turns, and the median of the rounds is printed. Decode is tokens a second while all
streams are running, prefill one prompt over the time to its first token, both over HTTP where there is HTTP.
"""

import argparse
import json
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import peers
import shapes

from mambad.server.bench_report import percentile

BATCHES = (1, 8, 32)
PREFILL_TOKENS = 512
ROOT = Path(__file__).parents[2]


def main() -> int:
    options = parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    results = []
    for name in options.models.split(","):
        folder = shapes.write(options.checkpoints or options.folder, name)
        for dtype in options.dtypes.split(","):
            results += compare(folder, dtype, options)
            if options.output:
                Path(options.output).write_text(json.dumps(results, indent=2))
    print(*markdown(results), sep="\n")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(shapes.NAMES))
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--output-tokens", type=int, default=32, help="of an answer in the decode measurement"
    )
    parser.add_argument("--slow-output-tokens", type=int, default=9, help="the same for Transformers")
    parser.add_argument("--rate", type=float, default=2.0, help="arrivals a second, for the TTFT")
    parser.add_argument("--arrivals", type=int, default=40, help="requests of that measurement")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/perf", help="for checkpoints and logs")
    parser.add_argument(
        "--checkpoints", type=Path, help="where checkpoints of tests/perf/shapes.py are already"
    )
    parser.add_argument("--llama-python", help="interpreter of an environment with xllamacpp and gguf")
    parser.add_argument("--llama-url", help="a llama.cpp server that runs already, with --models' only model")
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument("--output", help="JSON")
    return parser.parse_args()


def start(folder: Path, dtype: str, options: argparse.Namespace, cleanup: ExitStack) -> list:
    """Start every system that there is."""
    sizes = peers.Sizes(options.output_tokens, options.slow_output_tokens, max(BATCHES))
    log = options.folder / f"{folder.name}-{dtype}"
    running = []

    def add(peer) -> None:
        running.append(peer)
        if peer.process is not None:
            cleanup.callback(peer.process.stop)

    add(peers.start_mambad(folder, dtype, sizes, log.with_suffix(".mambad.log")))
    if options.llama_url:
        add(peers.HttpPeer("llama.cpp", options.llama_url, sizes))
    elif options.llama_python:
        add(peers.start_llama(options.llama_python, folder, dtype, sizes, log.with_suffix(".llama.log")))
    if not options.no_transformers:
        add(peers.TransformersPeer(folder, dtype, sizes, log.with_suffix(".transformers.log")))
    return running


def compare(folder: Path, dtype: str, options: argparse.Namespace) -> list[dict]:
    """Measure all systems on one checkpoint; returns one result a system."""
    with ExitStack() as cleanup:
        running = start(folder, dtype, options, cleanup)
        rounds = {peer.name: [] for peer in running}
        for peer in running:
            peer.decode(1)  # warms up
        for number in range(options.repeats):
            for peer in (*running[number % len(running) :], *running[: number % len(running)]):
                begin = time.monotonic()
                rounds[peer.name].append(measure(peer))
                took = time.monotonic() - begin
                print(f"{folder.name} {dtype} round {number + 1}: {peer.name} {took:.0f} s", file=sys.stderr)
        results = []
        for peer in running:
            medians = {
                key: statistics.median(item[key] for item in rounds[peer.name])
                for key in rounds[peer.name][0]
            }
            head = {"model": folder.name, "dtype": dtype, "system": peer.name}
            results.append(
                head | medians | latency(peer, options) | costs(peer) | {"rounds": rounds[peer.name]}
            )
        return results


def measure(peer) -> dict[str, float]:
    return {f"decode_{batch}": peer.decode(batch) for batch in BATCHES} | {
        "prefill": peer.prefill(PREFILL_TOKENS)
    }


def latency(peer, options: argparse.Namespace) -> dict[str, float]:
    if not isinstance(peer, peers.HttpPeer) or not options.arrivals:
        return {}
    times = sorted(1e3 * value for value in peer.first_tokens(options.rate, options.arrivals))
    return {"ttft_p50_ms": percentile(times, 50), "ttft_p99_ms": percentile(times, 99)}


def costs(peer) -> dict[str, float]:
    if peer.process is None:
        return {}
    return {"peak_mib": peer.process.peak_mib(), "ready_s": peer.process.ready_s}


def markdown(results: list[dict]) -> list[str]:
    """Return the table's lines; – is what could not be measured."""
    columns = {
        "decode_1": "decode 1", "decode_8": "8", "decode_32": "32", "prefill": f"prefill {PREFILL_TOKENS}",
        "ttft_p50_ms": "TTFT p50 ms", "ttft_p99_ms": "p99 ms", "peak_mib": "peak MiB", "ready_s": "ready s",
    }  # fmt: skip
    lines = [f"| model | weights | system | {' | '.join(columns.values())} |"]
    lines.append("|---|---|---|" + "---:|" * len(columns))
    for item in results:
        cells = [_cell(item.get(key)) for key in columns]
        lines.append(f"| {item['model']} | {item['dtype']} | {item['system']} | {' | '.join(cells)} |")
    return lines


def _cell(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main())
