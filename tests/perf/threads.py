"""`make bench-threads`: how much faster two computing threads are than one, without HTTP.

    python tests/perf/threads.py [--model DIR] [--dtype bfloat16] [--rounds 3] [-- flag of mambad ...]

Runs `mambad bench offline` with one thread and with two in turns, and prints medians and their ratio for
decoding at several batch sizes and for prefill.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import shapes

from mambad.server.bench_report import table

ROOT = Path(__file__).parents[2]
BATCHES = (1, 8, 32)
PREFILL_TOKENS = 512


def main() -> int:
    options = parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    model = options.model or shapes.write(options.folder, "mamba-130m")
    speeds = {1: [], 2: []}
    for number in range(options.rounds):
        for threads in speeds:
            speeds[threads].append(measure(model, threads, options))
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    rows = []
    for name in speeds[1][0]:
        one, two = (statistics.median(item[name] for item in speeds[threads]) for threads in speeds)
        rows.append([name, f"{one:.1f}", f"{two:.1f}", f"{two / one:.2f}"])
    print(*table(["tokens/s", "1 thread", "2 threads", "ratio"], rows), sep="\n")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", type=Path, help="checkpoint; default: a random one of the shape mamba-130m"
    )
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=ROOT / "build/perf", help="of the checkpoint")
    parser.add_argument("flags", nargs="*", help="more flags of `mambad bench offline`, after --")
    return parser.parse_args()


def measure(model: Path, threads: int, options: argparse.Namespace) -> dict[str, float]:
    runs = offline(model, threads, ",".join(map(str, BATCHES)), 16, 48, options)
    speeds = {f"decode {item['batch']}": item["decode_tokens_per_s"] for item in runs}
    long_prompt = offline(model, threads, "1", PREFILL_TOKENS, 1, options)[0]
    return speeds | {f"prefill {PREFILL_TOKENS}": long_prompt["prefill_tokens_per_s"]}


def offline(
    model: Path, threads: int, batches: str, prompt: int, answer: int, options: argparse.Namespace
) -> list[dict]:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [
            sys.executable, "-m", "mambad", "bench", "offline", str(model), "--dtype", options.dtype,
            "--threads", str(threads), "--batch", batches, "--input-tokens", str(prompt),
            "--output-tokens", str(answer), "--output", file.name, *options.flags,
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(Path(file.name).read_text())["runs"]


if __name__ == "__main__":
    sys.exit(main())
