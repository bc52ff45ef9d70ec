"""Moves requests between waiting, running, preempted and finished, and with them what they hold.

    add → WAITING → start → RUNNING → finish → FINISHED
     ↓       ↑        ↑        ↓ preempt
    COMPILING         └── PREEMPTED

Every way to end goes through `finish`, whatever the request's state; it runs once. A slot and its blocks
change hands only in `start`, `preempt` and `finish`, and the request's row of the block table is set to
null in the same call that gives them back. Decides nothing about order: that is the scheduler's. No torch.
"""

import logging
from bisect import insort
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from mambad.engine.cache_manager import Allocation, CacheManager
from mambad.engine.counters import Counters
from mambad.engine.faults import FaultInjector
from mambad.engine.outputs import RequestOutput, RequestTimes
from mambad.engine.request import Request, RequestStatus, Submission
from mambad.engine.runner import Runner
from mambad.engine.waiting_queue import WaitingQueue

if TYPE_CHECKING:
    from mambad.engine.grammar import RequestGrammar

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What the scheduler keeps to.

    Attributes:
        max_num_seqs: most requests that run at once.
        max_num_batched_tokens: token budget of a step.
        max_model_len: most tokens of a request, prompt and output.
        eos_token_ids: ids that end a sequence.
        end_of_message_ids: ids behind which a prefill may be split.
        slot_bytes, block_bytes: size of a slot and of a block, to bound what is swapped out.
        state_cache_bytes: most host memory for preempted requests; beyond it they are computed again.
        queue_timeout_s: longest wait for the first admission; None waits for ever.
        uses_priority: whether a waiting request may preempt a less urgent one that runs.
        scrub_slots: zero a slot when it becomes free.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    eos_token_ids: frozenset[int] = frozenset()
    end_of_message_ids: frozenset[int] = frozenset()
    slot_bytes: int = 0
    block_bytes: int = 0
    state_cache_bytes: int = 0
    queue_timeout_s: float | None = None
    uses_priority: bool = False
    scrub_slots: bool = False


class Lifecycle:
    """All live requests, by id, by key and by where they stand. One thread calls all of it.

    Args:
        cache: slots and blocks.
        runner: swaps states out and in, clears table rows, and knows which steps have completed.
        limits: what to keep to.
        counters: finishes, preemptions and tokens are counted here.
        clock: seconds, monotonic.
        faults: may make a release lose its slot.

    Attributes:
        running: requests that hold a slot, in order: the first is never preempted, the last is first to go.
        waiting: requests that do not.
        outputs: what is to be delivered.
        swapped_bytes: host memory that preempted requests take.
    """

    def __init__(
        self,
        cache: CacheManager,
        runner: Runner,
        limits: SchedulerLimits,
        counters: Counters,
        clock: Callable[[], float],
        faults: FaultInjector | None = None,
    ) -> None:
        self._faults = faults
        self._cache = cache
        self._runner = runner
        self._limits = limits
        self._counters = counters
        self._clock = clock
        self._by_id: dict[str, Request] = {}
        self._by_key: dict[int, Request] = {}
        self._next_key = 1
        self.running: list[Request] = []
        self.waiting = WaitingQueue()
        self.outputs: list[RequestOutput] = []
        self.swapped_bytes = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._by_id.values()))

    def keys(self) -> Set[int]:
        """Return the keys of all live requests."""
        return self._by_key.keys()

    def by_id(self, request_id: str) -> Request | None:
        """Return the live request of that id."""
        return self._by_id.get(request_id)

    def by_key(self, key: int) -> Request | None:
        """Return the live request of that key."""
        return self._by_key.get(key)

    def add(self, submission: Submission, grammar: "RequestGrammar | None" = None) -> None:
        """Put a submission in line; one that can't be served is answered with an error."""
        limits = self._limits
        num_tokens = len(submission.prompt_token_ids)
        if submission.request_id in self._by_id:
            self._refuse(submission, "a request of this id is running")
        elif not num_tokens or num_tokens + min(submission.params.max_tokens, 1) > limits.max_model_len:
            most = limits.max_model_len
            self._refuse(
                submission, f"prompt and output have 1 to {most} tokens, the prompt has {num_tokens}"
            )
        else:
            request = Request.from_submission(
                self._next_key, submission, limits.end_of_message_ids, self._clock()
            )
            request.grammar = grammar
            self._next_key += 1
            self._by_id[request.request_id] = self._by_key[request.key] = request
            if request.waits_for_grammar:
                request.status = RequestStatus.COMPILING
            else:
                self.waiting.push(request)

    def enqueue(self, request: Request) -> None:
        """Put a request in line whose grammar has been compiled; its place is that of its arrival."""
        request.status = RequestStatus.WAITING
        self.waiting.push(request)

    def start(self, request: Request, allocation: Allocation) -> bool:
        """Make a waiting request run on what was reserved for it.

        Returns:
            Whether it runs. If its state can't be brought back, it has ended with an error and holds nothing.
        """
        now = self._clock()
        try:
            if request.swapped is not None:
                num_blocks = self._cache.num_blocks_for(request.num_launched_tokens)
                self._runner.swap_in(request.swapped, allocation.slot.id, allocation.block_ids[:num_blocks])
        except Exception as error:
            logger.error("the state of request %d can't be brought back", request.key, exc_info=error)
            self._cache.release(request.key, until_step=0, completed_step=0, now=now)
            message = "the state of this request could not be restored; please retry"
            self.finish(request, "error", error=message, error_code="engine_error")
            return False
        self._cache.activate(request.key, now)
        self._drop_swapped(request)
        self.waiting.remove(request)
        request.status = RequestStatus.RUNNING
        insort(self.running, request, key=lambda r: r.order)
        if request.admitted_s is None:
            request.admitted_s = now
            self.outputs.append(RequestOutput(request.request_id))
        return True

    def preempt(self, request: Request) -> None:
        """Take slot and blocks from a running request; no launched step may work on it.

        Its state goes to host memory if that has room; else it will be computed again.
        """
        assert not request.is_in_flight
        if not self._swap_out(request):
            request.num_launched_tokens = request.num_computed_tokens = 0
        self._leave(request)
        request.status = RequestStatus.PREEMPTED
        request.is_yielding = False
        request.num_preemptions += 1
        self._counters.preemptions += 1
        self.waiting.push(request)

    def finish(
        self,
        request: Request,
        reason: str,
        *,
        output: RequestOutput | None = None,
        stop_token_id: int | None = None,
        error: str | None = None,
        error_code: str | None = None,
    ) -> None:
        """End a request, once, whatever its state, and give back all that it holds.

        Args:
            request: who ends.
            reason: as in RequestOutput.finish_reason, or `disconnect`.
            output: tokens of the step that ended it, to be delivered with the reason.
            stop_token_id, error, error_code: as in RequestOutput.
        """
        if request.status is RequestStatus.FINISHED:
            return
        if request.status is RequestStatus.RUNNING:
            self._leave(request)
        elif request.status is not RequestStatus.COMPILING:
            self.waiting.remove(request)
            self._drop_swapped(request)
        request.status = RequestStatus.FINISHED
        del self._by_id[request.request_id], self._by_key[request.key]
        self._counters.finished[reason] += 1
        if request.params.has_stop_strings:
            kept = request.num_kept_tokens
            self._counters.generation_tokens += request.num_generated_tokens if kept is None else kept
        output = output or RequestOutput(request.request_id)
        self.outputs.append(
            msgspec.structs.replace(
                output,
                finish_reason=reason,
                stop_token_id=stop_token_id,
                error=error,
                error_code=error_code,
                times=_times(request, self._clock()),
            )
        )

    def settle(self) -> None:
        """Free what was in quarantine until a step that has completed."""
        for slot in self._cache.settle(self._runner.num_completed, self._clock()):
            self._scrub(slot)

    def _leave(self, request: Request) -> None:
        """Take a request off the running ones, its row off the block table, and its slot and blocks."""
        self.running.remove(request)
        slot = self._cache.allocation(request.key).slot.id
        self._runner.clear_row(slot)
        where = (request.key, request.last_launched_step, self._runner.num_completed, self._clock())
        if self._faults is not None and self._faults.take("leak_slot"):
            self._cache.lose(*where)
        elif self._cache.release(*where):
            self._scrub(slot)

    def _swap_out(self, request: Request) -> bool:
        """Move a request's state and blocks to host memory; whether that had room."""
        allocation = self._cache.allocation(request.key)
        limits = self._limits
        num_bytes = limits.slot_bytes + limits.block_bytes * len(allocation.blocks)
        if self.swapped_bytes + num_bytes > limits.state_cache_bytes:
            return False
        num_blocks = self._cache.num_blocks_for(request.num_launched_tokens)
        try:
            swapped = self._runner.swap_out(allocation.slot.id, allocation.block_ids[:num_blocks])
        except Exception as error:
            logger.warning(
                "request %d can't be swapped out and will be computed again: %s", request.key, error
            )
            return False
        request.swapped = swapped
        self.swapped_bytes += swapped.num_bytes
        return True

    def _scrub(self, slot: int) -> None:
        if self._limits.scrub_slots:
            self._runner.scrub(slot)

    def _drop_swapped(self, request: Request) -> None:
        if request.swapped is not None:
            self.swapped_bytes -= request.swapped.num_bytes
            request.swapped = None

    def _refuse(self, submission: Submission, message: str) -> None:
        self.outputs.append(
            RequestOutput(
                submission.request_id, finish_reason="error", error=message, error_code="invalid_value"
            )
        )


def _times(request: Request, now: float) -> RequestTimes:
    admitted_s = now if request.admitted_s is None else request.admitted_s
    first_token_s = now if request.first_token_s is None else request.first_token_s
    return RequestTimes(
        admitted_s - request.arrival_s, first_token_s - admitted_s, now - first_token_s, request.arrival_s
    )
