"""How a system is asked: over HTTP, through a process that runs `generate`, or by llama.cpp's own tools.

A peer is started once and measured many times, so that rounds can alternate between peers. Which systems
there are and how each is started stands in `systems.py`.
"""

import asyncio
import json
import os
import select
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import uvloop
from process import PeerError, Process, use_all_cores

from mambad.server.bench_client import Exchange, Target
from mambad.server.bench_load import Load, Prompts, arrival_times, run_load

HERE = Path(__file__).parent
PROMPT_TOKENS = 8
"""Of a prompt where decoding is measured; short, because some peers take long for it."""

MAX_TOKEN_ID = 50_000
"""Of prompts. Nearly all are whole words: an untrained model repeats its prompt, and half a character that is
repeated makes a server wait for the other half, so that it streams nothing."""

LOAD_TOKENS = (64, 16)
"""Of prompts and answers that arrive at random."""


def output_tokens(batch: int) -> int:
    """Return the tokens of an answer: enough for a steady time, and not minutes for a slow peer."""
    return 64 if batch == 1 else 32 if batch <= 8 else 24 if batch <= 32 else 12


class HttpPeer:
    """An OpenAI-compatible server."""

    def __init__(self, url: str, limit_s: float, process: Process | None = None) -> None:
        self.process = process
        self._limit_s = limit_s
        self._seed = 0
        self._target = Target.from_url(f"{url}/v1/completions", {"Content-Type": "application/json"})
        with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
            self._model = json.load(answer)["data"][0]["id"]

    def decode(self, batch: int) -> float:
        """Tokens a second while all of `batch` streams are running."""
        load = Load(num_requests=batch, concurrency=batch, timeout_s=self._limit_s)
        exchanges = self._ask(load, output_tokens(batch), PROMPT_TOKENS)
        start = max(item.arrivals_s[0] for item in exchanges)
        end = min(item.arrivals_s[-1] for item in exchanges)
        if end <= start:
            raise PeerError(f"never had {batch} streams at once")
        return sum(_tokens_between(item, start, end) for item in exchanges) / (end - start)

    def prefill(self, num_tokens: int) -> float:
        """Prompt tokens a second of one prompt, until its first token is here."""
        load = Load(num_requests=1, concurrency=1, timeout_s=self._limit_s)
        exchange = self._ask(load, 1, num_tokens)[0]
        return num_tokens / (exchange.arrivals_s[0] - exchange.start_s)

    def first_tokens(self, rate: float, count: int) -> list[float]:
        """Seconds to the first token of requests that arrive at random."""
        load = Load(num_requests=count, rate=rate, timeout_s=self._limit_s)
        prompt, answer = LOAD_TOKENS
        return [item.arrivals_s[0] - item.start_s for item in self._ask(load, answer, prompt)]

    def _ask(self, load: Load, answer_tokens: int, input_tokens: int) -> list[Exchange]:
        self._seed += 1
        prompts = Prompts(
            model=self._model, input_tokens=input_tokens, output_tokens=answer_tokens,
            max_token_id=MAX_TOKEN_ID, is_text=False,
        )  # fmt: skip
        bodies = prompts.bodies(load.num_requests, self._seed)
        arrivals = arrival_times(load.rate, load.num_requests, self._seed) if load.rate else []
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            exchanges, _ = runner.run(run_load(self._target, load, bodies, arrivals))
        errors = [
            item.error or "an answer without a token"
            for item in exchanges
            if not item.arrivals_s or item.error
        ]
        if errors:
            raise PeerError(errors[0])
        return exchanges


class TransformersPeer:
    """`generate` in a process of its own; has no server, so no time to a first token under load."""

    first_tokens = None

    def __init__(self, folder: Path, dtype: str, threads: int, limit_s: float, log: Path) -> None:
        self._limit_s = limit_s
        command = [sys.executable, str(HERE / "transformers_loop.py"), str(folder), dtype, str(threads)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
        self.process = Process(command, log, env=environment, **pipes)
        with self.process.stopped_on_error():
            self._read(180)
        self.process.is_ready()

    def decode(self, batch: int) -> float:
        times = self._order(batch, PROMPT_TOKENS, min(output_tokens(batch), 9))
        return batch * (len(times) - 1) / (times[-1] - times[0])

    def prefill(self, num_tokens: int) -> float:
        return num_tokens / self._order(1, num_tokens, 1)[0]

    def _order(self, batch: int, input_tokens: int, answer_tokens: int) -> list[float]:
        if self.process.child.poll() is not None:
            raise PeerError("has ended")
        order = {"batch": batch, "input_tokens": input_tokens, "output_tokens": answer_tokens}
        self.process.child.stdin.write(json.dumps(order) + "\n")
        self.process.child.stdin.flush()
        return self._read(self._limit_s)

    def _read(self, limit_s: float):
        output = self.process.child.stdout
        if not select.select([output], [], [], limit_s)[0]:
            self.process.stop()
            raise PeerError(f"no end within {limit_s:g} s")
        line = output.readline()
        if not line:
            raise PeerError("has ended; see its log")
        return json.loads(line)


class LlamaTools:
    """llama-bench and llama-batched-bench: llama.cpp without a server, its best case."""

    process = None
    first_tokens = None

    def __init__(self, folder: Path, arguments: list[str], limit_s: float) -> None:
        self._folder = folder
        self._arguments = arguments
        self._limit_s = limit_s

    def decode(self, batch: int) -> float:
        if batch == 1:
            return self._bench("-p", "0", "-n", str(output_tokens(1)))
        words = ["-npp", str(PROMPT_TOKENS), "-ntg", str(output_tokens(batch)), "-npl", str(batch)]
        words += ["-c", str(2 * batch * (PROMPT_TOKENS + output_tokens(batch))), "--output-format", "jsonl"]
        lines = self._run("llama-batched-bench", *words).splitlines()
        return next(json.loads(line)["speed_tg"] for line in lines if line.startswith("{"))

    def prefill(self, num_tokens: int) -> float:
        return self._bench("-p", str(num_tokens), "-n", "0")

    def _bench(self, *words: str) -> float:
        return json.loads(self._run("llama-bench", "-r", "1", "-o", "json", *words))[0]["avg_ts"]

    def _run(self, tool: str, *words: str) -> str:
        arguments = [*self._arguments]
        if tool == "llama-bench" and "--no-repack" in arguments:  # which it calls otherwise
            arguments[-1:] = ["--repack", "0"]
        command = [str(self._folder / tool), *arguments, *words]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=self._limit_s, check=True,
                preexec_fn=use_all_cores,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise PeerError(f"no end within {self._limit_s:g} s") from None
        except (subprocess.CalledProcessError, OSError) as error:
            raise PeerError(f"{tool} failed: {error}") from None
        return done.stdout


Peer = HttpPeer | TransformersPeer | LlamaTools
Starter = Callable[[], Peer]


def _tokens_between(item: Exchange, start: float, end: float) -> float:
    """Tokens of a stream in (start, end]; chunks that hold several count for several."""
    chunks = sum(start < moment <= end for moment in item.arrivals_s)
    return chunks * (item.num_output_tokens or len(item.arrivals_s)) / len(item.arrivals_s)
