"""The engine: inbox → schedule → execute → commit → outputs, one call of `step` at a time.

Owns the steps that are launched and not committed, and the audit. Runs in the caller's thread: in the
engine process under `worker`, in tests and offline use directly. Knows no sockets and no text. No torch.
"""

import logging
import time
from collections import deque
from collections.abc import Callable

from mambad.engine.batch import Batch, StepResult
from mambad.engine.cache_manager import CacheManager
from mambad.engine.counters import Counters
from mambad.engine.errors import EngineDeadError
from mambad.engine.faults import FaultInjector
from mambad.engine.outputs import EngineStats, RequestOutput
from mambad.engine.reports import EngineReport, LastLeak
from mambad.engine.request import Submission
from mambad.engine.runner import Runner, StepHandle
from mambad.engine.scheduler import Scheduler

logger = logging.getLogger(__name__)

AUDIT_INTERVAL_S = 0.5
WAIT_SLICE_S = 0.25


class Engine:
    """Drives scheduler and runner. One thread calls all of it.

    Args:
        scheduler, cache, runner, counters: the parts, joined by `build`.
        runs_ahead: launch the next step before the last one is committed.
        clock: seconds, monotonic.
        faults: what was built into the parts to make them fail on demand, if anything.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cache: CacheManager,
        runner: Runner,
        counters: Counters,
        *,
        runs_ahead: bool = False,
        clock: Callable[[], float] = time.monotonic,
        faults: FaultInjector | None = None,
    ) -> None:
        self.faults = faults
        self.scheduler = scheduler
        self._cache = cache
        self._runner = runner
        self._counters = counters
        self._runs_ahead = runs_ahead
        self._clock = clock
        self._in_flight: deque[tuple[Batch, StepHandle]] = deque()
        self._next_audit_s = 0.0
        self._last_leak: LastLeak | None = None
        self._last_step_time_s = 0.0
        self._is_blocked = False

    def submit(self, submission: Submission) -> None:
        """Put a submission in line."""
        self.scheduler.add(submission)

    def abort(self, request_id: str, reason: str = "disconnect") -> None:
        """End a request that nobody waits for any more."""
        self.scheduler.abort(request_id, reason)

    def finish_early(self, request_id: str, num_kept_tokens: int) -> None:
        """End a request at a stop string."""
        self.scheduler.finish_early(request_id, num_kept_tokens)

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return len(self.scheduler.requests) > 0 or bool(self._in_flight)

    @property
    def is_blocked(self) -> bool:
        """Whether the last `step` found requests but nothing that could be launched."""
        return self._is_blocked

    @property
    def num_decode_rows(self) -> int:
        """Most decode rows that the next step can have."""
        return min(len(self.scheduler.requests), self.scheduler.limits.max_num_seqs)

    def step(
        self, on_wait: Callable[[], None] | None = None, min_decode_rows: int = 0
    ) -> list[RequestOutput]:
        """Launch the next step, commit the one before (or this one), and return what is to be delivered.

        Args:
            on_wait: called every quarter of a second while a step takes its time.
            min_decode_rows: see Batch.

        Raises:
            EngineDeadError: a step failed, and so did a step without any request after it.
        """
        batch = self.scheduler.schedule(min_decode_rows)
        self._is_blocked = batch is None
        if batch is not None:
            self._launch(batch)
        num_left_running = 1 if self._runs_ahead and batch is not None else 0
        while len(self._in_flight) > num_left_running:
            self._complete(on_wait)
        self.maintain()
        return self.scheduler.take_outputs()

    def dummy_step(self, min_decode_rows: int) -> None:
        """Compute a step of padding, which changes no slot, block or row of the table.

        Raises:
            EngineDeadError: it failed, and so did another one after it.
        """
        batch = self.scheduler.next_dummy_step(min_decode_rows)
        try:
            result = self._runner.launch(batch).result()
        except Exception as error:
            logger.error("step %d, of padding, failed: %s", batch.step_id, error, exc_info=error)
            self._probe(batch, error)
            return
        self._count(batch, result)

    def maintain(self) -> None:
        """Audit slots and blocks when it is time; also to be called while idle."""
        now = self._clock()
        if now >= self._next_audit_s:
            self._next_audit_s = now + AUDIT_INTERVAL_S
            self.audit()
        if not self._cache.is_conserved():
            logger.error("slots or blocks do not add up: %s %s", self.slot_counts(), self.block_counts())

    def audit(self) -> None:
        """Check every owner; log what leaked. Never raises, never stops the server."""
        self.scheduler.requests.settle()
        live_keys = self.scheduler.requests.keys()
        for kind, leak in self._cache.audit(live_keys, self.scheduler.last_launched_step, self._clock()):
            self._last_leak = LastLeak(time.time(), kind, leak.id, leak.last_owner)
            logger.error("%s %d leaked; its last owner was request %d", kind, leak.id, leak.last_owner)

    def drain(self) -> list[RequestOutput]:
        """Commit what is launched, launch nothing new, and return what is to be delivered."""
        while self._in_flight:
            self._complete(None)
        return self.scheduler.take_outputs()

    def poison_free(self) -> None:
        """Fill the null slot, the null block and all that is free with NaN: nobody may read any of it."""
        self.scheduler.requests.settle()
        slots, blocks = self._cache.free_ids()
        self._runner.poison([0, *slots], [0, *blocks] if self._cache.has_blocks else [])

    def shut_down(self, message: str) -> list[RequestOutput]:
        """End every request with the reason `shutdown` and return what is to be delivered."""
        self.scheduler.finish_all("shutdown", message)
        return self.drain()

    def close(self) -> None:
        """Let the launched steps end and stop the runner."""
        self._runner.close()

    def slot_counts(self) -> dict[str, int]:
        """Return the slots per state."""
        return self._cache.slot_counts()

    def block_counts(self) -> dict[str, int]:
        """Return the blocks per state."""
        return self._cache.block_counts()

    def stats(self) -> EngineStats:
        """Return one consistent report, between two steps."""
        return self.report().stats(self._last_step_time_s)

    def report(self) -> EngineReport:
        """Return a reader of the engine's present state."""
        return EngineReport(self._cache, self.scheduler, self._counters, self._clock, self._last_leak)

    def _launch(self, batch: Batch) -> None:
        try:
            self._in_flight.append((batch, self._runner.launch(batch)))
        except Exception as error:
            self._fail(batch, error)

    def _complete(self, on_wait: Callable[[], None] | None) -> None:
        """Wait for the oldest launched step and commit it."""
        batch, handle = self._in_flight.popleft()
        while not handle.wait(WAIT_SLICE_S):
            if on_wait is not None:
                on_wait()
        try:
            result = handle.result()
        except Exception as error:
            self._fail(batch, error)
            return
        self._count(batch, result)
        self.scheduler.commit(batch, result)

    def _count(self, batch: Batch, result: StepResult) -> None:
        counters = self._counters
        counters.num_steps += 1
        counters.step_duration_s[batch.kind].observe(result.duration_s)
        counters.batch_rows.observe(len(result.rows))
        if not batch.is_dummy:
            counters.step_tokens.observe(batch.num_tokens)
        counters.graph_padding_rows += result.num_padding_rows
        if result.graph_rows:
            counters.graph_replays[result.graph_rows] = counters.graph_replays.get(result.graph_rows, 0) + 1
        self._last_step_time_s = time.time()

    def _fail(self, batch: Batch, error: Exception) -> None:
        """End the requests of a step that raised, and find out whether the engine can go on."""
        logger.error("step %d failed: %s", batch.step_id, error, exc_info=error)
        self.scheduler.fail(batch, "the step that computed this request failed; please retry")
        while self._in_flight:
            self._complete(None)
        self._probe(batch, error)

    def _probe(self, batch: Batch, error: Exception) -> None:
        """Find out, with a step of padding, whether the engine can go on after a step that raised."""
        probe = self.scheduler.next_dummy_step()
        try:
            self._runner.launch(probe).result()
        except Exception as second:
            raise EngineDeadError(
                f"step {batch.step_id} failed ({error}), and the probe after it: {second}"
            ) from second
