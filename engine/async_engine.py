"""The one bridge between the event loop and the engine process: submit, stream, abort, drain.

Owns the streams by request id. Everything here runs on the event loop's thread; nothing blocks it. What
the engine decides, it decides in its own process. No torch.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mambad.engine.config import EngineConfig
from mambad.engine.engine_process import EngineProcess
from mambad.engine.errors import (
    ConfigError,
    EngineDeadError,
    EngineError,
    LoadError,
    NotReadyError,
    PromptTooLongError,
    QueueFullError,
)
from mambad.engine.messages import (
    Abort,
    EngineInfo,
    Exit,
    Fatal,
    Finish,
    FromEngine,
    Progress,
    Query,
    Ready,
    Reply,
    Shutdown,
    Stats,
    StepOutput,
    Submit,
)
from mambad.engine.outputs import EngineStats, RequestOutput
from mambad.engine.request import Submission
from mambad.engine.stream import RequestStream

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.25
QUERY_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """How the engine is.

    Attributes:
        phase: loading, ready, draining or dead.
        reason: for people; while loading, what is being done.
        since_s: time since the epoch at which the phase began.
        progress: share of `reason` that is done, 0 to 1, while that is known.
    """

    phase: str
    reason: str
    since_s: float
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much may wait, and for how long work may stand still."""

    max_queued_requests: int = 1024
    max_queued_tokens: int = 4 << 20
    engine_stall_timeout_s: float = 60.0


class AsyncEngine:
    """An engine process as the server sees it.

    Args:
        config: what to serve.
        limits: of the queue.
    """

    def __init__(self, config: EngineConfig, limits: QueueLimits | None = None) -> None:
        self._limits = limits or QueueLimits()
        self._process = EngineProcess(config, self._on_exit)
        self._streams: dict[str, RequestStream] = {}
        self._queued_tokens: dict[str, int] = {}
        self._queries: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ready = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._fatal: EngineError | None = None
        self._last_report: dict[str, Any] | None = None
        self._refuses_new = False
        self.status = EngineStatus("loading", "starting the engine process", time.time())
        self.info: EngineInfo | None = None
        self.stats = EngineStats()

    @property
    def num_streams(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    async def start(self) -> None:
        """Start the process; returns before it is ready."""
        self._process.start()
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._watch())]

    async def wait_ready(self) -> EngineInfo:
        """Wait until the engine takes requests. Raises: ConfigError, LoadError, EngineDeadError."""
        await self._ready.wait()
        if self._fatal is not None:
            raise self._fatal
        assert self.info is not None
        return self.info

    def submit(self, submissions: Sequence[Submission]) -> list[RequestStream]:
        """Put requests in line, all or none; their streams are open before the engine hears of them.

        Raises:
            NotReadyError: loading or draining.
            EngineDeadError: the engine process has gone.
            PromptTooLongError: a prompt leaves no room for a token.
            QueueFullError: too many requests or tokens wait already.
        """
        info = self._check_accepting()
        for submission in submissions:
            num_tokens = len(submission.prompt_token_ids)
            if num_tokens + min(submission.params.max_tokens, 1) > info.max_model_len:
                raise PromptTooLongError(num_tokens, info.max_model_len)
        self._check_queue(submissions, info.max_num_seqs)
        streams = [self._open(submission) for submission in submissions]
        self._idle.clear()
        self._process.send(Submit(tuple(submissions)))
        return streams

    async def state_report(self, **options: Any) -> dict[str, Any]:
        """Return the engine's part of `GET /state`, or its last one with `stale` if it does not answer."""
        if self.status.phase in ("ready", "draining"):
            query_id = time.monotonic_ns()
            answer = self._queries[query_id] = asyncio.get_running_loop().create_future()
            self._process.send(Query(query_id, options))
            try:
                with contextlib.suppress(TimeoutError):
                    report = await asyncio.wait_for(answer, QUERY_TIMEOUT_S)
                    self._last_report = report
                    return {**report, "stale": False}
            finally:
                self._queries.pop(query_id, None)
        return {**(self._last_report or {}), "stale": True}

    def start_draining(self) -> None:
        """Turn readiness red; new work is still accepted until `refuse_new`."""
        if self.status.phase in ("loading", "ready"):
            self._set_status("draining", "shutting down")

    def refuse_new(self) -> None:
        """Accept no more requests."""
        self._refuses_new = True

    async def drained(self, timeout_s: float) -> int:
        """Wait until no request is left, at most `timeout_s` seconds; return how many are."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        return len(self._streams)

    def end_all(self, message: str) -> None:
        """Have the engine end every request with the reason `shutdown`."""
        self._process.send(Shutdown(message))

    async def stop(self, timeout_s: float = 5.0) -> None:
        """End the engine process. What still streams fails."""
        self._fail_all("the server has stopped")
        self._process.send(Exit())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._process.stop(timeout_s)

    # ---- submitting ----------------------------------------------------------------------------------

    def _check_accepting(self) -> EngineInfo:
        if self.status.phase == "dead":
            raise EngineDeadError(self.status.reason)
        if self._refuses_new:
            raise NotReadyError("the server is shutting down", code="draining")
        if self.info is None:
            raise NotReadyError(f"the model is loading: {self.status.reason}", code="model_loading")
        return self.info

    def _check_queue(self, submissions: Sequence[Submission], max_num_seqs: int) -> None:
        limits = self._limits
        num_queued = len(self._streams) + len(submissions) - max_num_seqs
        if num_queued > limits.max_queued_requests:
            raise QueueFullError(
                f"{num_queued} requests would wait, the limit is {limits.max_queued_requests}: try later"
            )
        num_tokens = sum(self._queued_tokens.values()) + sum(len(s.prompt_token_ids) for s in submissions)
        if self._queued_tokens and num_tokens > limits.max_queued_tokens:
            raise QueueFullError(
                f"{num_tokens} tokens would wait, the limit is {limits.max_queued_tokens}: try again later"
            )

    def _open(self, submission: Submission) -> RequestStream:
        request_id = submission.request_id
        assert request_id not in self._streams, "request ids are unique"
        stream = RequestStream(
            request_id,
            lambda reason: self._abort(request_id, reason),
            lambda num_kept: self._process.send(Finish(request_id, num_kept)),
        )
        self._streams[request_id] = stream
        self._queued_tokens[request_id] = len(submission.prompt_token_ids)
        return stream

    def _abort(self, request_id: str, reason: str) -> None:
        self._process.send(Abort(request_id, reason))
        self._close(request_id)

    def _close(self, request_id: str) -> None:
        self._streams.pop(request_id, None)
        self._queued_tokens.pop(request_id, None)
        if not self._streams:
            self._idle.set()

    # ---- what the engine says ------------------------------------------------------------------------

    async def _receive(self) -> None:
        while True:
            self._handle(await self._process.receive())

    def _handle(self, message: FromEngine) -> None:
        match message:
            case StepOutput(outputs):
                for output in outputs:
                    self._deliver(output)
            case Stats(stats):
                self.stats = stats
            case Reply(query_id, report):
                self._answer(query_id, report)
            case Progress(what, done, total):
                self._set_status("loading", what, done / total if total else None)
            case Ready(info):
                self.info = info
                if self.status.phase == "loading":
                    self._set_status("ready", "")
                self._ready.set()
            case Fatal(kind, text):
                errors = {"config": ConfigError, "load": LoadError}
                self._die(text, errors.get(kind, EngineDeadError)(text))

    def _deliver(self, output: RequestOutput) -> None:
        stream = self._streams.get(output.request_id)
        if stream is not None:
            stream.deliver(output)
            self._queued_tokens.pop(output.request_id, None)
            if output.finish_reason is not None:
                self._close(output.request_id)

    def _answer(self, query_id: int, report: dict[str, Any]) -> None:
        future = self._queries.get(query_id)
        if future is not None and not future.done():
            future.set_result(report)

    async def _watch(self) -> None:
        """Notice an engine that has work and gets nowhere."""
        last, since_s = -1, time.monotonic()
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            value, now = self._process.progress.value, time.monotonic()
            has_work = bool(self._streams) and self.info is not None
            if value != last or not has_work:
                last, since_s = value, now
            elif now - since_s > self._limits.engine_stall_timeout_s:
                message = f"the engine made no progress for {now - since_s:.0f} s"
                self._die(message, EngineDeadError(message))
                self._process.kill()
                return

    def _on_exit(self, code: int) -> None:
        message = f"the engine process ended with code {code}"
        self._die(message, EngineDeadError(message))

    def _die(self, reason: str, error: EngineError) -> None:
        if self.status.phase == "dead":
            return
        logger.error("the engine is gone: %s", reason)
        self._set_status("dead", reason)
        self._fatal = error
        self._ready.set()
        self._fail_all(reason)

    def _fail_all(self, reason: str) -> None:
        for request_id, stream in list(self._streams.items()):
            stream.fail(EngineDeadError(reason))
            self._close(request_id)

    def _set_status(self, phase: str, reason: str, progress: float | None = None) -> None:
        since_s = self.status.since_s if phase == self.status.phase else time.time()
        self.status = EngineStatus(phase, reason, since_s, progress)
