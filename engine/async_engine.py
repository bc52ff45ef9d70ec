"""The one bridge between the event loop and the engine processes: submit, stream, abort, drain. No torch.

Owns the ranks and what they are together: ready when all are, dead when one is. Everything here runs on
the event loop's thread; nothing blocks it. What an engine decides, it decides in its own process.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mambad.engine.config import EngineConfig
from mambad.engine.engine_rank import EngineRank
from mambad.engine.errors import (
    EngineDeadError,
    EngineError,
    NotReadyError,
    PromptTooLongError,
    QueueFullError,
    RequestError,
)
from mambad.engine.messages import Call, EngineInfo, SetLogLevel, Shutdown, Submit
from mambad.engine.outputs import EngineStats
from mambad.engine.request import Submission
from mambad.engine.stream import RequestStream

WATCH_INTERVAL_S = 0.25


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
    """The engine processes as the server sees them.

    Args:
        config: what to serve.
        limits: of the queue.

    Attributes:
        status: how it is.
        ranks: its processes.
    """

    def __init__(self, config: EngineConfig, limits: QueueLimits | None = None) -> None:
        self._limits = limits or QueueLimits()
        self._is_in_lockstep = config.data_parallel_lockstep and config.data_parallel_size > 1
        self.ranks = [EngineRank(rank, config, self._on_change) for rank in range(config.data_parallel_size)]
        self._num_calls = 0
        self._watcher: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._refuses_new = False
        self.status = EngineStatus("loading", "starting the engine process", time.time())

    @property
    def info(self) -> EngineInfo | None:
        """What start-up computed, once every rank is ready; all ranks are alike."""
        return self.ranks[0].info if all(rank.info for rank in self.ranks) else None

    @property
    def stats(self) -> tuple[EngineStats, ...]:
        """The newest report of every rank."""
        return tuple(rank.stats for rank in self.ranks)

    @property
    def num_streams(self) -> int:
        """Requests that have not ended."""
        return sum(rank.num_streams for rank in self.ranks)

    async def start(self) -> None:
        """Start the processes; returns before they are ready."""
        rendezvous = self.ranks[0].folder / "rendezvous" if self._is_in_lockstep else None
        for rank in self.ranks:
            rank.start(rendezvous)
        self._watcher = asyncio.create_task(self._watch())

    async def wait_ready(self) -> EngineInfo:
        """Wait until requests are taken. Raises: ConfigError, LoadError, EngineDeadError."""
        await self._settled.wait()
        error = self._fatal()
        if error is not None:
            raise error
        assert self.info is not None
        return self.info

    def submit(self, submissions: Sequence[Submission], rank: int | None = None) -> list[RequestStream]:
        """Put requests in line, all or none; their streams are open before an engine hears of them.

        Args:
            submissions: what is asked for.
            rank: who shall do it; None leaves it to whoever has the least to do.

        Raises:
            NotReadyError: loading or draining.
            EngineDeadError: an engine process has gone.
            PromptTooLongError: a prompt leaves no room for a token.
            QueueFullError: too many requests or tokens wait already.
            RequestError: there is no such rank.
        """
        info = self._check_accepting()
        for submission in submissions:
            num_tokens = len(submission.prompt_token_ids)
            if num_tokens + min(submission.params.max_tokens, 1) > info.max_model_len:
                raise PromptTooLongError(num_tokens, info.max_model_len)
        if rank is not None and not 0 <= rank < len(self.ranks):
            raise RequestError(f"there is no rank {rank}: ranks are 0 to {len(self.ranks) - 1}")
        self._check_queue(submissions, info.max_num_seqs * len(self.ranks))
        self._idle.clear()
        streams = []
        for submission in submissions:
            chosen = self.ranks[rank] if rank is not None else min(self.ranks, key=lambda r: r.num_streams)
            streams.append(chosen.open(submission))
            self._send(submission, chosen)
        return streams

    async def state_reports(self, **options: Any) -> list[dict[str, Any]]:
        """Return each engine's part of `GET /state`, with `engine` and `stale`."""
        reports = await asyncio.gather(*(rank.report(options) for rank in self.ranks))
        return [{"engine": rank, **report} for rank, report in enumerate(reports)]

    async def inject(self, name: str, times: int, duration_ms: int, rank: int) -> bool | None:
        """Order a fault; whether the engine takes such orders, None if it does not answer."""
        return await self.ranks[rank].inject(name, times, duration_ms)

    def cancel(self, is_meant: Callable[[str], bool]) -> int:
        """End the requests of which `is_meant` says so by their id; return how many these were."""
        return sum(rank.cancel(is_meant) for rank in self.ranks)

    def set_log_level(self, level: str) -> None:
        """Have the engine processes log from this level on; one that loads hears of it when it is ready."""
        for rank in self.ranks:
            rank.send(SetLogLevel(level))

    def start_draining(self) -> None:
        """Turn readiness red; new work is still accepted until `refuse_new`."""
        self._is_draining = True
        self._on_change()

    def refuse_new(self) -> None:
        """Accept no more requests."""
        self._refuses_new = True

    async def drained(self, timeout_s: float) -> int:
        """Wait until no request is left, at most `timeout_s` seconds; return how many are."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        return self.num_streams

    def end_all(self, message: str) -> None:
        """Have the engines end every request with the reason `shutdown`."""
        for rank in self.ranks:
            rank.send(Shutdown(message))

    async def stop(self, timeout_s: float = 5.0) -> None:
        """End the engine processes. What still streams fails."""
        for rank in self.ranks:
            rank.fail_all("the server has stopped")
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await asyncio.gather(*(rank.stop(timeout_s) for rank in self.ranks))

    def _send(self, submission: Submission, chosen: EngineRank) -> None:
        """Send a request to a rank; in lockstep, call all the others to work with it."""
        self._num_calls += 1
        chosen.send(Submit((submission,), self._num_calls))
        if self._is_in_lockstep:
            for rank in self.ranks:
                if rank is not chosen:
                    rank.send(Call(self._num_calls))

    def _check_accepting(self) -> EngineInfo:
        if self.status.phase == "dead":
            raise EngineDeadError(self.status.reason)
        if self._refuses_new:
            raise NotReadyError("the server is shutting down", code="draining")
        if self.info is None:
            raise NotReadyError(f"the model is loading: {self.status.reason}", code="model_loading")
        return self.info

    def _check_queue(self, submissions: Sequence[Submission], num_running: int) -> None:
        limits = self._limits
        num_queued = self.num_streams + len(submissions) - num_running
        if num_queued > limits.max_queued_requests:
            raise QueueFullError(
                f"{num_queued} requests would wait, the limit is {limits.max_queued_requests}: try later"
            )
        num_waiting = sum(rank.num_queued_tokens for rank in self.ranks)
        num_tokens = num_waiting + sum(len(submission.prompt_token_ids) for submission in submissions)
        if num_waiting and num_tokens > limits.max_queued_tokens:
            raise QueueFullError(
                f"{num_tokens} tokens would wait, the limit is {limits.max_queued_tokens}: try again later"
            )

    async def _watch(self) -> None:
        """Notice an engine that has work and gets nowhere."""
        seen = [(-1, time.monotonic()) for _ in self.ranks]
        while self.status.phase != "dead":
            await asyncio.sleep(WATCH_INTERVAL_S)
            now = time.monotonic()
            for index, rank in enumerate(self.ranks):
                value, since_s = seen[index]
                # In lockstep, whoever hangs holds up the others: all of them have work when one has.
                num_streams = self.num_streams if self._is_in_lockstep else rank.num_streams
                has_work = num_streams > 0 and self.info is not None
                if rank.progress != value or not has_work:
                    seen[index] = (rank.progress, now)
                elif now - since_s > self._limits.engine_stall_timeout_s:
                    rank.kill()
                    rank.die(EngineDeadError(f"the engine made no progress for {now - since_s:.0f} s"))

    def _fatal(self) -> EngineError | None:
        return next((rank.fatal for rank in self.ranks if rank.fatal is not None), None)

    def _on_change(self) -> None:
        """Bring `status` and the events up to date."""
        error = self._fatal()
        if self.num_streams == 0:
            self._idle.set()
        if error is not None and self.status.phase != "dead":
            self._set_status("dead", str(error))
            for rank in self.ranks:
                rank.fail_all(str(error))
        elif error is None and self._is_draining:
            self._set_status("draining", "shutting down")
        elif error is None and self.info is not None:
            self._set_status("ready", "")
        elif error is None:
            loading = next(rank for rank in self.ranks if rank.info is None)
            self._set_status("loading", *loading.loading)
        if error is not None or self.info is not None:
            self._settled.set()

    def _set_status(self, phase: str, reason: str, progress: float | None = None) -> None:
        since_s = self.status.since_s if phase == self.status.phase else time.time()
        self.status = EngineStatus(phase, reason, since_s, progress)
