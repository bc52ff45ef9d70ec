"""The systems that are compared: how each is started, asked and stopped. Every one has `THREADS` threads.

A peer is started once and measured many times, so that rounds can alternate between peers.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import uvloop

from mambad.server.bench_client import Exchange, Target
from mambad.server.bench_load import Load, Prompts, arrival_times, run_load

HERE = Path(__file__).parent
DTYPES = {"float32": "F32", "bfloat16": "BF16"}
THREADS = 1
START_TIMEOUT_S = 180
PROMPT_TOKENS = 16


@dataclass(frozen=True)
class Sizes:
    """Tokens of an answer, in HTTP servers and in Transformers, which is slow, and most requests at once."""

    output_tokens: int
    slow_output_tokens: int
    max_batch: int


class Process:
    """A child with its children: when it was ready, and how much memory they had at most."""

    def __init__(self, command: list[str], log: Path, **options: object) -> None:
        self.start_s = time.monotonic()
        self.ready_s = 0.0
        self.peak_bytes = 0
        with log.open("w") as errors:
            self.child = subprocess.Popen(command, stderr=errors, start_new_session=True, **options)

    def is_ready(self) -> None:
        self.ready_s = time.monotonic() - self.start_s

    def peak_mib(self) -> float:
        """Sum of the processes' own peaks."""
        pages = 0
        for pid in (self.child.pid, *_children(self.child.pid)):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM"):
                    pages += int(line.split()[1])
        return pages / 1024

    def stop(self) -> None:
        os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_children(int(child))]
    return found


class HttpPeer:
    """An OpenAI-compatible server."""

    def __init__(self, name: str, url: str, sizes: Sizes, process: Process | None = None) -> None:
        self.name = name
        self.process = process
        self._sizes = sizes
        self._seed = 0
        headers = {"Content-Type": "application/json"}
        self._target = Target.from_url(f"{url}/v1/completions", headers)
        self._model = _first_model(url)

    def decode(self, batch: int) -> float:
        """Tokens a second while all of `batch` streams are running."""
        exchanges = self._ask(Load(num_requests=batch, concurrency=batch), self._sizes.output_tokens)
        start = max(item.arrivals_s[0] for item in exchanges)
        end = min(item.arrivals_s[-1] for item in exchanges)
        return sum(_tokens_between(item, start, end) for item in exchanges) / (end - start)

    def prefill(self, num_tokens: int) -> float:
        """Prompt tokens a second of one prompt, until its first token is here."""
        exchange = self._ask(Load(num_requests=1, concurrency=1), 1, num_tokens)[0]
        return num_tokens / (exchange.arrivals_s[0] - exchange.start_s)

    def first_tokens(self, rate: float, count: int) -> list[float]:
        """Seconds to the first token of requests that arrive at random."""
        load = Load(num_requests=count, rate=rate)
        return [item.arrivals_s[0] - item.start_s for item in self._ask(load, 16, 64)]

    def _ask(self, load: Load, output_tokens: int, input_tokens: int = PROMPT_TOKENS) -> list[Exchange]:
        self._seed += 1
        prompts = Prompts(
            model=self._model, input_tokens=input_tokens, output_tokens=output_tokens, max_token_id=250,
            is_text=False,
        )  # fmt: skip
        bodies = prompts.bodies(load.num_requests, self._seed)
        arrivals = arrival_times(load.rate, load.num_requests, self._seed) if load.rate else []
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            exchanges, _ = runner.run(run_load(self._target, load, bodies, arrivals))
        errors = [item.error for item in exchanges if item.error]
        if errors:
            raise RuntimeError(f"{self.name}: {errors[0]}")
        return exchanges


class TransformersPeer:
    """`generate` in a process of its own; has no server, so no time to a first token under load."""

    name = "transformers"

    def __init__(self, folder: Path, dtype: str, sizes: Sizes, log: Path) -> None:
        self._sizes = sizes
        command = [sys.executable, str(HERE / "transformers_loop.py"), str(folder), dtype, str(THREADS)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(THREADS)}
        self.process = Process(command, log, env=environment, **pipes)
        self._read()
        self.process.is_ready()

    def decode(self, batch: int) -> float:
        times = self._order(batch, PROMPT_TOKENS, self._sizes.slow_output_tokens)
        return batch * (len(times) - 1) / (times[-1] - times[0])

    def prefill(self, num_tokens: int) -> float:
        return num_tokens / self._order(1, num_tokens, 1)[0]

    def _order(self, batch: int, input_tokens: int, output_tokens: int) -> list[float]:
        order = {"batch": batch, "input_tokens": input_tokens, "output_tokens": output_tokens}
        self.process.child.stdin.write(json.dumps(order) + "\n")
        self.process.child.stdin.flush()
        return self._read()

    def _read(self):
        line = self.process.child.stdout.readline()
        if not line:
            raise RuntimeError("the Transformers process has ended; see its log")
        return json.loads(line)


def start_mambad(folder: Path, dtype: str, sizes: Sizes, log: Path) -> HttpPeer:
    """Start `mambad serve`; its kernels are those of this checkout."""
    port = _free_port()
    command = [
        sys.executable, "-m", "mambad", "serve", str(folder), "--port", str(port), "--dtype", dtype,
        "--threads", str(THREADS), "--max-num-seqs", str(sizes.max_batch),
    ]  # fmt: skip
    process = Process(command, log, stdout=subprocess.DEVNULL)
    return _http_peer("mambad", port, "/ready", sizes, process)


def start_llama(python: str, folder: Path, dtype: str, sizes: Sizes, log: Path) -> HttpPeer:
    """Start llama.cpp from another environment, on the same weights converted."""
    file = log.parent / f"{folder.name}-{DTYPES[dtype]}.gguf"
    if not file.exists():
        subprocess.run([python, HERE / "to_gguf.py", folder, DTYPES[dtype], file], check=True)
    port = _free_port()
    command = [
        python,
        str(HERE / "llama_server.py"),
        str(file),
        str(port),
        str(sizes.max_batch),
        str(THREADS),
    ]
    process = Process(command, log, stdout=subprocess.DEVNULL)
    return _http_peer("llama.cpp", port, "/health", sizes, process)


def _http_peer(name: str, port: int, path: str, sizes: Sizes, process: Process) -> HttpPeer:
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(url + path, timeout=5):
                break
        except OSError:
            if process.child.poll() is not None or time.monotonic() > deadline:
                process.stop()
                raise RuntimeError(f"{name} did not start; see its log") from None
            time.sleep(0.05)
    process.is_ready()
    return HttpPeer(name, url, sizes, process)


def _first_model(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
        return json.load(answer)["data"][0]["id"]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _tokens_between(item: Exchange, start: float, end: float) -> float:
    """Tokens of a stream in (start, end]; chunks that hold several count for several."""
    chunks = sum(start < moment <= end for moment in item.arrivals_s)
    return chunks * (item.num_output_tokens or len(item.arrivals_s)) / len(item.arrivals_s)
