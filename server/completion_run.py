"""A submitted request for completions: its streams read, as deltas of its choices.

Owns the streams: whatever happens, `close` gives them up. Nothing here depends on whether the answer is
streamed.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from mambad.engine.errors import EngineDeadError
from mambad.engine.outputs import RequestOutput
from mambad.engine.stream import RequestStream
from mambad.server.chat_choice import TOOL_CALLS
from mambad.server.choice import ChoiceText, Delta
from mambad.server.convert import CompletionPlan
from mambad.server.errors import failure_of
from mambad.server.merge import merge_streams
from mambad.server.request_metrics import ChoiceTimer, RequestMetrics
from mambad.server.run_outcome import RunOutcome
from mambad.server.tokenizer import TextTokenizer

LAST_WORD_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a whole answer. A prompt counts once, however many choices it has."""

    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int


class CompletionRun:
    """Reads the streams of one request.

    Args:
        plan: what was asked for.
        streams: one a choice, in order of index.
        text: the model's tokenizer.
        metrics: told of every token and end.
        arrived_s: monotonic time of the request's arrival.
        background: holds tasks that outlive the answer by a moment.

    Attributes:
        is_finished: whether every choice has made its last delta.
        outcome: what a log line tells of it.
        arrived_s: as given.
    """

    def __init__(
        self,
        plan: CompletionPlan,
        streams: Sequence[RequestStream],
        text: TextTokenizer,
        metrics: RequestMetrics,
        arrived_s: float,
        background: set[asyncio.Task[None]],
    ) -> None:
        self._plan = plan
        self._streams = streams
        self.arrived_s = arrived_s
        prompts = [prompt for prompt in plan.prompts for _ in range(plan.num_choices)]
        self._choices = [ChoiceText(text, plan.text_options, prompt) for prompt in prompts]
        self._timers = [
            ChoiceTimer(metrics, stream.rank, len(prompt.token_ids), arrived_s)
            for stream, prompt in zip(streams, prompts, strict=True)
        ]
        self._num_prompt_tokens = sum(len(prompt.token_ids) for prompt in plan.prompts)
        self._cached_tokens = [0] * len(streams)
        self._num_unfinished = len(streams)
        self._background = background
        self._closed = asyncio.Event()
        self._untimed: set[int] = set()  # choices that ended at a stop string, before the engine knew
        self._last_words: list[asyncio.Task[None]] = []
        self.outcome = RunOutcome([None] * len(streams), [None] * len(streams))

    @property
    def is_finished(self) -> bool:
        """See the class."""
        return self._num_unfinished == 0

    @property
    def rank(self) -> int:
        """The engine that works on it."""
        return self._streams[0].rank

    @property
    def has_begun(self) -> bool:
        """Whether the engine has said anything of the first choice."""
        return self._streams[0].has_output

    async def admitted(self) -> None:
        """Wait until the engine has begun with the first choice.

        Raises:
            ApiError: it has ended before it began: it waited too long, say.
            EngineDeadError: the engine has gone.
        """
        self._check(0, await self._streams[0].first())

    async def deltas(self) -> AsyncGenerator[list[tuple[int, Delta]], None]:
        """Yield what has come, as (index of the choice, delta) pairs, until every choice has finished.

        Raises:
            ApiError: a choice ended otherwise than by `stop` or `length`.
            EngineDeadError: the engine has gone.
        """
        if len(self._streams) == 1:
            async for output in self._streams[0]:
                delta = self._feed(0, output)
                yield [] if delta is None else [(0, delta)]
                if self.is_finished:
                    return
            return
        async with aclosing(merge_streams(self._streams)) as batches:
            async for batch in batches:
                deltas = [(index, self._feed(index, output)) for index, output in batch]
                yield [(index, delta) for index, delta in deltas if delta is not None]
                if self.is_finished:
                    return

    def usage(self) -> Usage:
        """Return the tokens so far."""
        return Usage(
            num_prompt_tokens=self._num_prompt_tokens,
            num_completion_tokens=sum(choice.num_tokens for choice in self._choices),
            num_cached_tokens=sum(self._cached_tokens[:: self._plan.num_choices]),
        )

    def count_calls(self, index: int) -> None:
        """Count a choice that has ended as one that ended in calls of tools."""
        self._timers[index].ended_in_calls()
        self.outcome.finish_reasons[index] = TOOL_CALLS

    def cancel(self) -> None:
        """End what has not ended: whoever reads gets the reason `cancelled`."""
        for stream in self._streams:
            stream.cancel()

    def close(self, reason: str = "disconnect") -> None:
        """Give up what has not ended, once; `reason` is what the engine's counters call it."""
        if self._closed.is_set():
            return
        self._closed.set()
        self.outcome.closed_for = self.outcome.closed_for or reason
        for stream in self._streams:
            stream.abort(reason)
        for index in self._untimed:
            task = asyncio.create_task(self._read_times(index))
            self._background.add(task)
            task.add_done_callback(self._background.discard)
            self._last_words.append(task)

    @property
    def is_closed(self) -> bool:
        """Whether it has been given up, at its end or before."""
        return self._closed.is_set()

    @property
    def is_settled(self) -> bool:
        """Whether nothing more will be known of it."""
        return self._closed.is_set() and all(task.done() for task in self._last_words)

    async def settled(self) -> None:
        """Wait until nothing more will be known of it: it is closed, and the engine has had its last word."""
        await self._closed.wait()
        await asyncio.gather(*self._last_words, return_exceptions=True)

    def _feed(self, index: int, output: RequestOutput) -> Delta | None:
        if self._choices[index].is_finished:
            self._take_times(index, output)
            return None
        self._check(index, output)
        choice, timer, stream = self._choices[index], self._timers[index], self._streams[index]
        delta = choice.feed(output)
        timer.tokens(len(delta.token_ids))
        if self.outcome.first_token_s is None and delta.token_ids:
            self.outcome.first_token_s = time.monotonic()
        if output.num_cached_tokens > self._cached_tokens[index]:
            self._cached_tokens[index] = output.num_cached_tokens
        if choice.is_finished:
            self._num_unfinished -= 1
            self.outcome.finish_reasons[index] = delta.finish_reason
            timer.finished(choice.num_tokens)
            self._untimed.add(index)
            stream.finish_early(choice.num_tokens)
            self._take_times(index, output)
        return delta

    def _check(self, index: int, output: RequestOutput) -> None:
        failure = failure_of(output)
        if failure is not None:
            self.outcome.times[index] = output.times
            self.outcome.closed_for = output.finish_reason
            raise failure

    def _take_times(self, index: int, output: RequestOutput) -> None:
        if output.times is not None and index in self._untimed:
            self._untimed.discard(index)
            self.outcome.times[index] = output.times
            self._timers[index].engine_times(output.times, self._choices[index].num_tokens)

    async def _read_times(self, index: int) -> None:
        """Wait for the engine's last word on a choice that the client has in full."""
        with contextlib.suppress(EngineDeadError, TimeoutError):
            async with asyncio.timeout(LAST_WORD_TIMEOUT_S):
                async for output in self._streams[index]:
                    self._take_times(index, output)
