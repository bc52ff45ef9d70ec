"""`make bench-overcommit`: more servers than cores. How much of the total speed is lost?

    python tests/perf/overcommit.py [--model DIR] [--dtype bfloat16] [--rounds 3]

Measures one server with 8 streams, then 4 servers with 8 streams each at the same time, every one with its
default number of threads, and again in turns. Prints tokens a second in total and the loss, and ends with
status 1 when that is above 30 %: spinning threads of an over-committed machine would lose ten times that.
"""

import argparse
import asyncio
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

import shapes
import uvloop
from process import Process, free_port, stop_when_told

from mambad.server.bench_client import Exchange, Target
from mambad.server.bench_load import Load, Prompts, run_load

ROOT = Path(__file__).parents[2]
NUM_SERVERS = 4
NUM_STREAMS = 8
WARM_UP_TOKENS = 8
MOST_LOSS = 0.3


def main() -> int:
    options = parse()
    stop_when_told()
    options.folder.mkdir(parents=True, exist_ok=True)
    model = options.model or shapes.write(options.folder, "mamba-130m")
    with ExitStack() as cleanup:
        targets = [start(model, number, options, cleanup) for number in range(NUM_SERVERS)]
        total(targets, WARM_UP_TOKENS)
        alone, together = [], []
        for number in range(options.rounds):
            alone.append(total(targets[:1], options.output_tokens))
            together.append(total(targets, options.output_tokens))
            print(f"round {number + 1}: {alone[-1]:.1f} alone, {together[-1]:.1f} together", file=sys.stderr)
    one, many = statistics.median(alone), statistics.median(together)
    loss = 1 - many / one
    print(f"1 server × {NUM_STREAMS} streams: {one:.1f} tokens/s")
    print(f"{NUM_SERVERS} servers × {NUM_STREAMS} streams: {many:.1f} tokens/s in total")
    print(f"lost: {loss:.1%}" if loss > 0 else f"lost: nothing ({-loss:.1%} more)")
    return int(loss > MOST_LOSS)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", type=Path, help="checkpoint; default: a random one of the shape mamba-130m"
    )
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output-tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/perf", help="of logs and the checkpoint")
    return parser.parse_args()


def start(model: Path, number: int, options: argparse.Namespace, cleanup: ExitStack) -> Target:
    port = free_port()
    command = [
        sys.executable, "-m", "mambad", "serve", str(model), "--port", str(port), "--dtype", options.dtype,
        "--max-num-seqs", str(NUM_STREAMS), "--served-model-name", "m",
    ]  # fmt: skip
    process = Process(command, options.folder / f"overcommit-{number}.log")
    cleanup.callback(process.stop)
    process.wait_for(f"http://127.0.0.1:{port}/ready", 180)
    return Target.from_url(f"http://127.0.0.1:{port}/v1/completions", {"Content-Type": "application/json"})


def total(targets: list[Target], num_tokens: int) -> float:
    """Return tokens a second of all servers together, from the first request to the last answer's end."""
    prompts = Prompts(model="m", input_tokens=16, output_tokens=num_tokens, max_token_id=250, is_text=False)
    load = Load(num_requests=NUM_STREAMS, concurrency=NUM_STREAMS)

    async def ask_all() -> list[list[Exchange]]:
        jobs = (
            run_load(target, load, prompts.bodies(NUM_STREAMS, seed)) for seed, target in enumerate(targets)
        )
        return [exchanges for exchanges, _ in await asyncio.gather(*jobs)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        exchanges = [item for items in runner.run(ask_all()) for item in items]
    for item in exchanges:
        if item.error:
            raise SystemExit(f"overcommit: {item.error}")
    seconds = max(item.end_s for item in exchanges) - min(item.start_s for item in exchanges)
    return num_tokens * len(exchanges) / seconds


if __name__ == "__main__":
    sys.exit(main())
