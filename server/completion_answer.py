"""Turns a running request into an HTTP answer: events as they come, or one body at the end.

The only place that knows the difference between the two. Ends every stream with [DONE], and closes the run
whatever happens.
"""

import asyncio
import logging
from contextlib import aclosing

import orjson
from starlette.responses import Response

from mambad.server.completion_reply import CompletionReply, WholeChoice
from mambad.server.completion_run import CompletionRun
from mambad.server.convert import CompletionPlan
from mambad.server.errors import ApiError, api_error_of, request_timeout
from mambad.server.request_metrics import RequestMetrics
from mambad.server.sse import DONE, Write, error_event, event

logger = logging.getLogger(__name__)


class CompletionAnswer:
    """Answers one request.

    Args:
        plan, run, reply: the request, its streams, and how its answer looks.
        timeout_s: longest it may take from now on; None = for ever.
        metrics: told of failures.
    """

    def __init__(
        self,
        plan: CompletionPlan,
        run: CompletionRun,
        reply: CompletionReply,
        timeout_s: float | None,
        metrics: RequestMetrics,
    ) -> None:
        self._plan = plan
        self._run = run
        self._reply = reply
        self._timeout_s = timeout_s
        self._deadline_s = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        self._metrics = metrics

    def close(self) -> None:
        """Give the request up if it has not ended."""
        self._run.close()

    @property
    def has_begun(self) -> bool:
        """Whether the engine has begun, or has refused to."""
        return self._run.has_begun

    async def admitted(self) -> None:
        """Wait in the queue; a stream's headers are sent after that, so that this can fail with a status.

        Raises:
            ApiError, EngineError: what went wrong.
        """
        try:
            async with asyncio.timeout_at(self._deadline_s):
                await self._run.admitted()
        except TimeoutError:
            self._run.close("timeout")
            raise self._timeout_error() from None

    async def whole(self) -> Response:
        """Return the answer in one piece.

        Raises:
            ApiError, EngineError: what went wrong.
        """
        choices = [WholeChoice() for _ in range(len(self._plan.prompts) * self._plan.num_choices)]
        reason = "disconnect"
        try:
            async with asyncio.timeout_at(self._deadline_s), aclosing(self._run.deltas()) as batches:
                async for batch in batches:
                    for index, delta in batch:
                        choices[index].add(delta)
        except TimeoutError:
            reason = "timeout"
            raise self._timeout_error() from None
        except Exception:
            reason = "error"
            raise
        finally:
            self._run.close(reason)
        body = self._reply.body(choices, self._run.usage())
        return Response(orjson.dumps(body), media_type="application/json")

    async def stream(self, write: Write) -> None:
        """Write the answer event by event; failures are events too."""
        reason, ending = "disconnect", DONE
        try:
            await self._write_events(write)
        except TimeoutError:
            reason, ending = "timeout", error_event(self._timeout_error()) + DONE
        except Exception as exc:
            reason, ending = "error", error_event(self._failure(exc)) + DONE
        finally:
            self._run.close(reason)
        await write(ending)

    async def _write_events(self, write: Write) -> None:
        run, reply, plan = self._run, self._reply, self._plan
        async with asyncio.timeout_at(self._deadline_s), aclosing(run.deltas()) as batches:
            async for batch in batches:
                last = None if plan.include_usage or not run.is_finished else batch[-1][0]
                events = [
                    event(reply.chunk(index, delta, run.usage(), is_last=index == last))
                    for index, delta in batch
                    if reply.says_something(delta)
                ]
                if events:
                    await write(b"".join(events))
            if plan.include_usage:
                await write(event(reply.usage_chunk(run.usage())))

    def _timeout_error(self) -> ApiError:
        assert self._timeout_s is not None
        return request_timeout(self._timeout_s)

    def _failure(self, exc: Exception) -> ApiError:
        error = api_error_of(exc)
        self._metrics.count_rejection(error)
        if error.code == "internal_error":
            logger.exception("a stream failed")
        return error
