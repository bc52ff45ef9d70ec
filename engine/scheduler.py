"""Decides what each step computes.

Continuous batching without phases: each request catches up `num_launched_tokens` with its tokens, a
prompt in spans that end at cuts, then one token a step. Running requests come first, then waiting ones
while token budget, slots and blocks last. `Lifecycle` moves the requests and what they hold; this file
decides who and when. Knows no tensors, sockets or text. No torch.
"""

from collections.abc import Callable

from mambad.engine.batch import Batch, PrefillSpan, RowResult, StepResult
from mambad.engine.batch_builder import BatchBuilder
from mambad.engine.cache_manager import CacheManager
from mambad.engine.constraints import Constraints
from mambad.engine.counters import Counters
from mambad.engine.grammar_compiler import GrammarCompiler
from mambad.engine.lifecycle import Lifecycle, SchedulerLimits
from mambad.engine.outputs import RequestOutput, TokenLogprobs
from mambad.engine.request import Request, RequestStatus, Submission


class Scheduler:
    """Requests from `add` to their end. One thread calls all of it.

    Args:
        requests: all of them, and what they hold.
        cache: slots and blocks.
        limits: what to keep to.
        counters: the scheduler counts tokens here.
        clock: seconds, monotonic.
        grammars: compiles what answers must look like; without it, requests that want it are refused.
    """

    def __init__(
        self,
        requests: Lifecycle,
        cache: CacheManager,
        limits: SchedulerLimits,
        counters: Counters,
        clock: Callable[[], float],
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.requests = requests
        self._constraints = Constraints(requests, limits.eos_token_ids, grammars)
        self._cache = cache
        self.limits = limits
        self._counters = counters
        self._clock = clock
        self._last_step = 0
        self._next_expiry_check_s = 0.0

    @property
    def last_launched_step(self) -> int:
        """Number of the newest step that was handed out."""
        return self._last_step

    def add(self, submission: Submission) -> None:
        """Put a submission in line."""
        self._constraints.add(submission)

    def abort(self, request_id: str, reason: str) -> None:
        """End a request that nobody waits for any more; one that has ended already is no error."""
        request = self.requests.by_id(request_id)
        if request is not None:
            self.requests.finish(request, reason)

    def finish_early(self, request_id: str, num_kept_tokens: int) -> None:
        """End a request at a stop string that the front end found after `num_kept_tokens` output tokens."""
        request = self.requests.by_id(request_id)
        if request is not None:
            request.num_kept_tokens = num_kept_tokens
            self.requests.finish(request, "stop")

    def finish_all(self, reason: str, error: str | None = None) -> None:
        """End every request."""
        for request in self.requests:
            self.requests.finish(request, reason, error=error, error_code=reason if error else None)

    def take_outputs(self) -> list[RequestOutput]:
        """Return, and forget, what is to be delivered."""
        outputs, self.requests.outputs = self.requests.outputs, []
        return outputs

    def schedule(self, min_decode_rows: int = 0) -> Batch | None:
        """Return the next step, or None when nothing can be computed now; see Batch.min_decode_rows."""
        self.requests.settle()
        self._expire()
        self._constraints.settle()
        self._preempt_yielding()
        self._yield_to_urgent()
        builder = BatchBuilder(self._last_step + 1, self.limits.max_num_batched_tokens)
        for request in list(self.requests.running):
            if request.status is RequestStatus.RUNNING and not request.is_yielding:
                self._schedule_running(request, builder)
        self._admit_waiting(builder)
        batch = builder.build(min_decode_rows)
        if batch is not None:
            self._last_step = batch.step_id
        return batch

    def next_dummy_step(self, min_decode_rows: int = 0) -> Batch:
        """Return a step that computes padding only."""
        self._last_step += 1
        return Batch(self._last_step, is_dummy=True, min_decode_rows=min_decode_rows)

    def commit(self, batch: Batch, result: StepResult) -> None:
        """Take in the results of a completed step. Rows of requests that have ended since are dropped."""
        rows = iter(result.rows)
        for span in batch.prefills:
            self._commit_prefill(span, next(rows))
        for _ in batch.decodes:
            row = next(rows)
            request = self.requests.by_key(row.request_key)
            if request is not None:
                request.num_computed_tokens += 1
                self._commit_row(request, row, RequestOutput(request.request_id))
        self.requests.settle()

    def fail(self, batch: Batch, message: str) -> None:
        """End the requests of a step that raised."""
        keys = {span.request_key for span in batch.prefills} | {row.request_key for row in batch.decodes}
        for key in keys:
            request = self.requests.by_key(key)
            if request is not None:
                self.requests.finish(request, "error", error=message, error_code="engine_error")

    # ---- who is in the step --------------------------------------------------------------------------

    def _schedule_running(self, request: Request, builder: BatchBuilder) -> None:
        allocation = self._cache.allocation(request.key)
        if request.is_prefilling:
            end = builder.span_end(request)
            if end > request.num_launched_tokens:
                builder.add_prefill(request, allocation.slot.id, end)
            return
        if not self._can_launch_decode(request):
            return
        first_column = len(allocation.blocks)
        num_tokens = request.num_launched_tokens + 1
        new = self._cache.grow(request.key, num_tokens, self._clock())
        if new is None and self._make_room(request):
            new = self._cache.grow(request.key, num_tokens, self._clock())
        if new is not None:
            builder.add_blocks(allocation.slot.id, first_column, [block.id for block in new])
            builder.add_decode(request, allocation.slot.id)

    def _can_launch_decode(self, request: Request) -> bool:
        """Whether the next token is known, or may be consumed before the host knows it."""
        if request.num_launched_tokens >= request.num_tokens:
            return False
        if request.num_launched_tokens < len(request.token_ids):
            return True
        params = request.params
        num_generated = request.num_tokens - request.num_prompt_tokens
        is_at_limit = num_generated >= params.max_tokens or request.num_tokens >= self.limits.max_model_len
        waits_for_token = params.has_stop_strings or params.reads_tokens or request.grammar is not None
        return not (is_at_limit or waits_for_token)

    def _admit_waiting(self, builder: BatchBuilder) -> None:
        while len(self.requests.running) < self.limits.max_num_seqs:
            request = self.requests.waiting.head()
            if request is None:
                return
            if request.is_prefilling and builder.span_end(request) == request.num_launched_tokens:
                return
            num_tokens = max(request.num_prompt_tokens, request.num_launched_tokens + 1)
            allocation = self._cache.admit(request.key, num_tokens, self._clock())
            if allocation is None:
                return
            if self.requests.start(request, allocation):
                builder.add_blocks(allocation.slot.id, 0, allocation.block_ids)
                self._schedule_running(request, builder)

    # ---- who makes room ------------------------------------------------------------------------------

    def _make_room(self, request: Request) -> bool:
        """Have the last in order give up its blocks for `request`; whether they are free already."""
        running = self.requests.running
        victim = running[-1]
        is_room_coming = any(r.is_yielding for r in running) or self._cache.has_quarantined_blocks
        if is_room_coming or victim is running[0]:
            return False
        victim.is_yielding = True
        if victim.is_in_flight or victim is request:
            return False
        self.requests.preempt(victim)
        return True

    def _preempt_yielding(self) -> None:
        for request in [r for r in self.requests.running if r.is_yielding and not r.is_in_flight]:
            self.requests.preempt(request)

    def _yield_to_urgent(self) -> None:
        """Under the priority policy, have the last in order make way for a more urgent request."""
        head = self.requests.waiting.head()
        running = self.requests.running
        if not self.limits.uses_priority or head is None or not running:
            return
        is_full = len(running) >= self.limits.max_num_seqs or not self._cache.has_free_slot
        if is_full and head.priority < running[-1].priority and not any(r.is_yielding for r in running):
            running[-1].is_yielding = True
            self._preempt_yielding()

    def _expire(self) -> None:
        now = self._clock()
        timeout_s = self.limits.queue_timeout_s
        if timeout_s is None or now < self._next_expiry_check_s:
            return
        self._next_expiry_check_s = now + min(0.1, timeout_s)
        for request in self.requests.waiting.new_requests():
            waited_s = now - request.arrival_s
            if waited_s > timeout_s:
                message = f"waited {waited_s:.1f} s for a slot, the limit is {timeout_s:g} s; try again later"
                self.requests.finish(request, "timeout", error=message, error_code="queue_timeout")

    # ---- what a step gave ----------------------------------------------------------------------------

    def _commit_prefill(self, span: PrefillSpan, row: RowResult) -> None:
        request = self.requests.by_key(row.request_key)
        if request is None:
            return
        end = span.start + len(span.token_ids)
        request.num_computed_tokens = end
        self._counters.prompt_tokens += max(end - request.num_prompt_tokens_counted, 0)
        request.num_prompt_tokens_counted = max(end, request.num_prompt_tokens_counted)
        num_sent = request.num_prompt_logprobs_sent
        prompt_logprobs = row.prompt_logprobs[max(num_sent - span.start, 0) :]
        if num_sent == 0 and span.num_prompt_logprobs >= 0:
            prompt_logprobs = (TokenLogprobs(request.token_ids[0], None), *prompt_logprobs)
        request.num_prompt_logprobs_sent = max(num_sent, end)
        self._commit_row(request, row, RequestOutput(request.request_id, prompt_logprobs=prompt_logprobs))

    def _commit_row(self, request: Request, row: RowResult, output: RequestOutput) -> None:
        """Append the row's token, if it drew one, and end the request or pass `output` on with it."""
        if not row.is_finite:
            self._counters.nonfinite += 1
            message = "the model gave logits that are not finite for this request"
            self.requests.finish(request, "error", error=message, error_code="nonfinite_logits")
            return
        if row.token_id is not None:
            request.num_pending_samples -= 1
            if request.grammar is not None and not self._constraints.follow(request, row.token_id, output):
                return
            request.token_ids.append(row.token_id)
            self._counters.generation_tokens += not request.params.has_stop_strings
            if request.first_token_s is None:
                request.first_token_s = self._clock()
            logprobs = () if row.logprobs is None else (row.logprobs,)
            output = RequestOutput(
                request.request_id,
                (row.token_id,),
                logprobs,
                prompt_logprobs=output.prompt_logprobs,
                ends_in_text=self._constraints.is_completed_by(request, row.token_id),
            )
        reason, stop_token_id = self._end_after(request, row.token_id)
        if reason is not None:
            self.requests.finish(request, reason, output=output, stop_token_id=stop_token_id)
        elif output.token_ids or output.prompt_logprobs:
            self.requests.outputs.append(output)

    def _end_after(self, request: Request, token_id: int | None) -> tuple[str | None, int | None]:
        """Return why a request ends with this token, and the stop id that ended it, if one did."""
        params = request.params
        if token_id is None:
            is_scored = params.max_tokens == 0 and request.num_computed_tokens >= request.num_prompt_tokens
            return ("length" if is_scored else None), None
        is_end_meant = not params.ignore_eos or request.grammar is not None
        if token_id in self.limits.eos_token_ids and is_end_meant:
            return "stop", None
        if token_id in params.stop_token_ids:
            return "stop", token_id
        if self._constraints.is_completed_by(request, token_id):
            return "stop", None
        is_long = request.num_generated_tokens >= params.max_tokens
        if is_long or len(request.token_ids) >= self.limits.max_model_len:
            return "length", None
        return None, None
