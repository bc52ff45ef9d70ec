"""`make bench-frontend`: what streaming costs the front end, without a model behind it and with the demo.

    python tests/perf/frontend.py [--streams 1 32 256] [--chat] [--seconds 5] [--output FILE.json]

Three tables. Paced: an engine without a model gives each stream a token a step, at a pace that the front end
keeps up with, so that a chunk holds one token; processor time of the front end by chunk. Unpaced: the same as
fast as it goes; tokens pile up and share chunks. Demo: the real engine with the demo model at its top speed,
and the share of one core that the front end takes. Processor time is all threads' of the front end process,
taken between the moment when every stream has begun and the first stream's end (unpaced: over all).
"""

import argparse
import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from process import PeerError, Process

from mambad.server.bench_report import table

ROOT = Path(__file__).parents[2]
PACED_CHUNKS_PER_S = 8000
FAST_TOKENS = 1_000_000
MAX_STEPS_PER_S = 1000
DEMO_STREAMS, DEMO_TOKENS = 32, 2000
DONE = b"data: [DONE]"
HEAD = "POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"


@dataclass
class Server:
    port: int
    pid: int

    def cpu_s(self) -> float:
        """Processor time of the front end's threads so far."""
        total_ns = 0
        for path in Path(f"/proc/{self.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # the thread has ended
                total_ns += int(path.read_text().split()[0])
        return total_ns / 1e9


@dataclass
class Window:
    """What happened while all streams ran."""

    streams: int
    seconds: float
    tokens: int
    chunks: int
    cpu_s: float

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.chunks * 1e6


class Load:
    """Streams that are read at once, by one event loop that does nothing but count."""

    def __init__(
        self, server: Server, num_streams: int, num_tokens: int, path: str, is_whole: bool = False
    ) -> None:
        self._server = server
        self._num_streams = num_streams
        self._num_tokens = num_tokens
        self._path = path
        self._is_whole = is_whole
        self._chunks = [0] * num_streams
        self._all_begun = asyncio.Event()
        self._one_ended = asyncio.Event()

    async def run(self) -> Window:
        """Run all streams to their end; return what happened while all ran, or from the first to the last."""
        if self._is_whole:
            self._all_begun.set()
        tasks = [asyncio.create_task(self._stream(index)) for index in range(self._num_streams)]
        watch = asyncio.create_task(self._watch())
        await asyncio.gather(*tasks)
        self._one_ended.set()
        seconds, chunks, cpu_s = await watch
        tokens = self._num_streams * self._num_tokens
        share = chunks / max(sum(self._chunks), 1)
        return Window(self._num_streams, seconds, round(tokens * share), chunks, cpu_s)

    async def _watch(self) -> tuple[float, int, float]:
        await self._all_begun.wait()
        start_s, chunks, cpu_s = time.monotonic(), sum(self._chunks), self._server.cpu_s()
        await self._one_ended.wait()
        cpu_s = self._server.cpu_s() - cpu_s
        return time.monotonic() - start_s, sum(self._chunks) - chunks, cpu_s

    async def _stream(self, index: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port, limit=1 << 20)
        body = {"max_tokens": self._num_tokens, "stream": True, "ignore_eos": True}
        is_chat = self._path.endswith("chat/completions")
        body |= {"messages": [{"role": "user", "content": "x"}]} if is_chat else {"prompt": f"{index} x"}
        data = json.dumps(body).encode()
        writer.write(HEAD.format(self._path, len(data)).encode() + data)
        tail = b""
        while DONE not in tail:
            data = await reader.read(1 << 18)
            if not data:
                raise ConnectionError(f"the stream ended early: {tail!r}")
            tail = tail[-len(DONE) :] + data
            # A few events are cut in two by the edge of a read and not counted.
            self._chunks[index] += data.count(b"data: ")
            if self._chunks[index] and all(self._chunks):
                self._all_begun.set()
        if not self._is_whole:
            self._one_ended.set()
        writer.close()


@contextlib.contextmanager
def serve(command: list[str], *flags: str) -> Iterator[Server]:
    """Start a server on a free port; end it with the block."""
    command = [sys.executable, *command, "--port", "0", "--log-level", "warning", *flags]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        process = Process(command, log, stdout=subprocess.PIPE, text=True)
        try:
            assert process.child.stdout is not None
            for line in process.child.stdout:
                found = re.search(r"listening on http://.*:(\d+)", line)
                if found:
                    break
            else:
                raise PeerError(f"the server did not start:\n{log.read_text()}")
            yield Server(int(found[1]), process.child.pid)
        finally:
            process.stop()


def dummy(steps_per_s: float, load: tuple[int, int], path: str, is_whole: bool = False) -> Window:
    """Measure with the dummy engine."""
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    script = str(ROOT / "tests/perf/frontend_server.py")
    flags = ("--max-queued-requests", "4096", "--chat-template", template)
    with serve([script, str(steps_per_s), "demo"], *flags) as server:
        return asyncio.run(Load(server, *load, path, is_whole).run())


def paced(num_streams: int, seconds: float, path: str) -> Window:
    """Measure at a pace at which a chunk is a token."""
    steps_per_s = min(PACED_CHUNKS_PER_S / num_streams, MAX_STEPS_PER_S)
    return dummy(steps_per_s, (num_streams, max(int(steps_per_s * seconds), 20)), path)


def unpaced(num_streams: int, path: str) -> Window:
    """Measure as fast as it goes."""
    return dummy(0, (num_streams, FAST_TOKENS // max(num_streams, 4)), path, is_whole=True)


def demo(path: str) -> Window:
    """Measure with the demo model itself."""
    command = ["-m", "mambad", "serve", "demo", "--max-num-seqs", str(DEMO_STREAMS)]
    with serve(command) as server:
        return asyncio.run(Load(server, DEMO_STREAMS, DEMO_TOKENS, path).run())


def row(name: str, window: Window) -> list[str]:
    """Return a line of the table."""
    rate, chunks = window.tokens / window.seconds, window.chunks / window.seconds
    share = window.cpu_s / window.seconds
    times = f"{window.cpu_us:.1f}", f"{share:.0%}"
    return [name, str(window.streams), f"{rate:,.0f}", f"{chunks:,.0f}", *times]


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each paced run")
    parser.add_argument("--chat", action="store_true", help="ask for chats instead of completions")
    parser.add_argument("--skip-demo", action="store_true")
    parser.add_argument("--output", type=Path, help="JSON file for the numbers")
    options = parser.parse_args()
    path = "/v1/chat/completions" if options.chat else "/v1/completions"
    runs = [("paced", paced(count, options.seconds, path)) for count in options.streams]
    runs += [("unpaced", unpaced(count, path)) for count in options.streams]
    if not options.skip_demo:
        runs.append(("demo model", demo("/v1/completions")))
    header = ["engine", "streams", "tokens/s", "chunks/s", "CPU µs/chunk", "of one core"]
    print(*table(header, [row(*run) for run in runs]), sep="\n")
    if options.output is not None:
        options.output.write_text(
            json.dumps([{"engine": name} | asdict(run) for name, run in runs], indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
