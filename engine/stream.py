"""One request's way back: outputs from the engine, merged until the reader takes them.

Lives on the event loop. Its memory is bounded by the request's own `max_tokens`, so a slow reader never
holds up the engine or anybody else. No torch.
"""

import asyncio
from collections.abc import Callable

from mambad.engine.errors import EngineDeadError
from mambad.engine.outputs import RequestOutput


class RequestStream:
    """An asynchronous iterator of what a request yields; ends after the output with a finish reason.

    Args:
        request_id: whose outputs these are.
        on_abort: called once with a reason if the reader leaves before the end.
        on_finish_early: called with the number of tokens kept when the reader found a stop string.
        rank: the data-parallel rank that works on it.
    """

    def __init__(
        self,
        request_id: str,
        on_abort: Callable[[str], None],
        on_finish_early: Callable[[int], None],
        rank: int = 0,
    ) -> None:
        self.request_id = request_id
        self.rank = rank
        self._on_abort = on_abort
        self._on_finish_early = on_finish_early
        self._pending: list[RequestOutput] = []
        self._waiter: asyncio.Future[None] | None = None
        self._error: EngineDeadError | None = None
        self._is_closed = False
        self._is_read_out = False

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> RequestOutput:
        """Return everything that came since the last call, as one output. Raises: EngineDeadError."""
        if self._is_read_out:
            raise StopAsyncIteration
        await self.first()
        pending, self._pending = self._pending, []
        output = pending[0] if len(pending) == 1 else _merge(pending)
        self._is_read_out = output.finish_reason is not None
        return output

    @property
    def has_output(self) -> bool:
        """Whether an output waits to be taken."""
        return bool(self._pending)

    async def first(self) -> RequestOutput:
        """Wait for the first output and return it without taking it. One reader at a time.

        Raises:
            EngineDeadError: there will be none.
        """
        while not self._pending:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._pending[0]

    def abort(self, reason: str = "disconnect") -> None:
        """Give the request up. Does nothing once it has ended; meant for every `finally`."""
        if not self._is_closed:
            self._is_closed = True
            self._on_abort(reason)

    def finish_early(self, num_kept_tokens: int) -> None:
        """End the request at a stop string after `num_kept_tokens` output tokens."""
        if not self._is_closed:
            self._is_closed = True
            self._on_finish_early(num_kept_tokens)

    def cancel(self) -> None:
        """End the request from this side: its reader gets the reason `cancelled`. No more comes after it."""
        if not self._is_closed:
            self._is_closed = True
            self._on_abort("cancelled")
            self._pending.append(RequestOutput(self.request_id, finish_reason="cancelled"))
            self._wake()

    def deliver(self, output: RequestOutput) -> None:
        """Take in what a step gave. Called by `AsyncEngine` only."""
        self._pending.append(output)
        if output.finish_reason is not None:
            self._is_closed = True
        self._wake()

    def fail(self, error: EngineDeadError) -> None:
        """The engine is gone: the reader gets what came so far, then the error. By `AsyncEngine` only."""
        self._is_closed = True
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _merge(outputs: list[RequestOutput]) -> RequestOutput:
    last = outputs[-1]
    return RequestOutput(
        request_id=last.request_id,
        token_ids=tuple(token for output in outputs for token in output.token_ids),
        logprobs=tuple(entry for output in outputs for entry in output.logprobs),
        prompt_logprobs=tuple(entry for output in outputs for entry in output.prompt_logprobs),
        finish_reason=last.finish_reason,
        stop_token_id=last.stop_token_id,
        num_cached_tokens=max(output.num_cached_tokens for output in outputs),
        error=last.error,
        error_code=last.error_code,
        times=last.times,
        ends_in_text=last.ends_in_text,
    )
