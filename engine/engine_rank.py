"""One engine process as the event loop sees it: its streams, its reports, its end. No torch.

Owns the streams by request id. `AsyncEngine` decides which rank a request goes to, and what the end of one
rank means for the others. Everything here runs on the event loop's thread; nothing blocks it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mambad.engine.config import EngineConfig
from mambad.engine.engine_process import EngineProcess
from mambad.engine.errors import ConfigError, EngineDeadError, EngineError, LoadError
from mambad.engine.messages import (
    Abort,
    EngineInfo,
    Exit,
    Fatal,
    Finish,
    FromEngine,
    Inject,
    Progress,
    Query,
    Ready,
    Reply,
    Stats,
    StepOutput,
    ToEngine,
)
from mambad.engine.outputs import EngineStats, RequestOutput
from mambad.engine.request import Submission
from mambad.engine.stream import RequestStream

logger = logging.getLogger(__name__)

QUERY_TIMEOUT_S = 1.0


class EngineRank:
    """A rank's process and everything that is in flight with it.

    Args:
        rank: which one, from 0.
        config: what it serves.
        on_change: called when the rank becomes ready, loads on, dies, or has no stream left.

    Attributes:
        info: what start-up computed, once it is ready.
        stats: its newest report.
        loading: what it is doing, and what share of that is done, while it loads.
        fatal: why it is gone.
        num_queued_tokens: prompt tokens of requests that it has not admitted.
    """

    def __init__(self, rank: int, config: EngineConfig, on_change: Callable[[], None]) -> None:
        self.rank = rank
        self._on_change = on_change
        self._process = EngineProcess(config, self._handle, self._on_exit, rank)
        self._streams: dict[str, RequestStream] = {}
        self._queued_tokens: dict[str, int] = {}
        self._queries: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last_report: dict[str, Any] = {}
        self.info: EngineInfo | None = None
        self.stats = EngineStats()
        self.loading: tuple[str, float | None] = ("starting the engine process", None)
        self.fatal: EngineError | None = None
        self.num_queued_tokens = 0

    @property
    def num_streams(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def progress(self) -> int:
        """How often the engine got anywhere."""
        return self._process.progress.value

    @property
    def folder(self) -> Path:
        """The rank's private folder."""
        return self._process.folder

    def start(self, rendezvous: Path | None) -> None:
        """Start the process; returns before it is ready. The ranks meet by the file, if there is one."""
        self._process.start(rendezvous)

    def send(self, message: ToEngine) -> None:
        """Send a message."""
        self._process.send(message)

    def open(self, submission: Submission) -> RequestStream:
        """Open the stream of a request that is about to be sent."""
        request_id = submission.request_id
        assert request_id not in self._streams, "request ids are unique"
        stream = RequestStream(
            request_id,
            lambda reason: self._abort(request_id, reason),
            lambda num_kept: self.send(Finish(request_id, num_kept)),
            self.rank,
        )
        self._streams[request_id] = stream
        self._queued_tokens[request_id] = len(submission.prompt_token_ids)
        self.num_queued_tokens += len(submission.prompt_token_ids)
        return stream

    async def report(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the engine's part of `GET /state`, or its last one with `stale` if it does not answer."""
        answer = None
        if self.info is not None and self.fatal is None:
            answer = await self._ask(lambda query_id: Query(query_id, options))
        if answer is None:
            return {**self._last_report, "stale": True}
        self._last_report = answer
        return {**answer, "stale": False}

    async def inject(self, name: str, times: int, duration_ms: int) -> bool | None:
        """Order a fault; whether the engine takes such orders, None if it does not answer."""
        answer = await self._ask(lambda query_id: Inject(query_id, name, times, duration_ms))
        return None if answer is None else bool(answer["is_enabled"])

    def cancel(self, is_meant: Callable[[str], bool]) -> int:
        """End the requests of which `is_meant` says so by their id; return how many these were."""
        meant = [stream for request_id, stream in self._streams.items() if is_meant(request_id)]
        for stream in meant:
            stream.cancel()
        return len(meant)

    def fail_all(self, reason: str) -> None:
        """End every stream with EngineDeadError."""
        for request_id, stream in list(self._streams.items()):
            stream.fail(EngineDeadError(reason))
            self._close(request_id)

    def kill(self) -> None:
        """End the process now."""
        self._process.kill()

    async def stop(self, timeout_s: float) -> None:
        """Have the process end by itself within `timeout_s` seconds, else kill it."""
        self.send(Exit())
        await self._process.stop(timeout_s)

    def die(self, error: EngineError) -> None:
        """Note that the engine is gone; the first reason stands."""
        if self.fatal is None:
            if isinstance(error, EngineDeadError):
                logger.error("engine %d is gone: %s", self.rank, error)
            self.fatal = error
            self.fail_all(str(error))
            self._on_change()

    async def _ask(self, make: Callable[[int], ToEngine]) -> dict[str, Any] | None:
        query_id = time.monotonic_ns()
        answer = self._queries[query_id] = asyncio.get_running_loop().create_future()
        self.send(make(query_id))
        try:
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(answer, QUERY_TIMEOUT_S)
        finally:
            self._queries.pop(query_id, None)
        return None

    def _abort(self, request_id: str, reason: str) -> None:
        self.send(Abort(request_id, reason))
        self._close(request_id)

    def _close(self, request_id: str) -> None:
        self._streams.pop(request_id, None)
        self._admitted(request_id)
        if not self._streams:
            self._on_change()

    def _admitted(self, request_id: str) -> None:
        self.num_queued_tokens -= self._queued_tokens.pop(request_id, 0)

    def _handle(self, message: FromEngine) -> None:
        match message:
            case StepOutput(outputs):
                for output in outputs:
                    self._deliver(output)
            case Stats(stats):
                self.stats = stats
            case Reply(query_id, report):
                future = self._queries.get(query_id)
                if future is not None and not future.done():
                    future.set_result(report)
            case Progress(what, done, total):
                self.loading = (what, done / total if total else None)
                self._on_change()
            case Ready(info):
                self.info = info
                self._on_change()
            case Fatal(kind, text):
                errors = {"config": ConfigError, "load": LoadError}
                self.die(errors.get(kind, EngineDeadError)(text))

    def _deliver(self, output: RequestOutput) -> None:
        stream = self._streams.get(output.request_id)
        if stream is not None:
            stream.deliver(output)
            self._admitted(output.request_id)
            if output.finish_reason is not None:
                self._close(output.request_id)

    def _on_exit(self, code: int) -> None:
        self.die(EngineDeadError(f"the engine process ended with code {code}"))
