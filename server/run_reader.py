"""Reads a run within its time limit, and closes it whatever happens. For every kind of answer."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from mambad.server.choice import Delta
from mambad.server.completion_run import CompletionRun, Usage
from mambad.server.errors import ApiError, api_error_of, request_timeout
from mambad.server.request_metrics import RequestMetrics

logger = logging.getLogger(__name__)


class RunReader:
    """Reads one run.

    Args:
        run: the streams of a request.
        timeout_s: longest they may take from now on; None = for ever.
        metrics: told of failures.
    """

    def __init__(
        self, run: CompletionRun, timeout_s: float | None, metrics: RequestMetrics, spent_s: float = 0.0
    ) -> None:
        self._run = run
        self._timeout_s = timeout_s
        left_s = None if timeout_s is None else max(timeout_s - spent_s, 0.0)
        self._deadline_s = None if left_s is None else asyncio.get_running_loop().time() + left_s
        self._metrics = metrics

    @property
    def has_begun(self) -> bool:
        """Whether the engine has begun, or has refused to."""
        return self._run.has_begun

    @property
    def is_finished(self) -> bool:
        """Whether every choice has made its last delta."""
        return self._run.is_finished

    def usage(self) -> Usage:
        """Return the tokens so far."""
        return self._run.usage()

    def count_calls(self, index: int) -> None:
        """Count a choice that has ended as one that ended in calls of tools."""
        self._run.count_calls(index)

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
        except Exception:
            self._run.close("error")
            raise

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncGenerator[list[tuple[int, Delta]], None]]:
        """Give the run's deltas to the block; the time limit counts for all that it does.

        Raises:
            ApiError, EngineError: what went wrong.
        """
        reason = "disconnect"
        try:
            async with asyncio.timeout_at(self._deadline_s), aclosing(self._run.deltas()) as batches:
                yield batches
        except TimeoutError:
            reason = "timeout"
            raise self._timeout_error() from None
        except Exception:
            reason = "error"
            raise
        finally:
            self._run.close(reason)

    def failure(self, exc: Exception) -> ApiError:
        """Return what the client is told of a failure for which it is too late to send a status."""
        error = self._run.outcome.error = api_error_of(exc)
        self._metrics.count_rejection(error)
        if error.code == "internal_error":
            logger.error("a stream failed", exc_info=exc)
        return error

    def cancel(self) -> None:
        """End the run from this side: whoever reads it gets the error `cancelled`."""
        self._run.cancel()

    def close(self) -> None:
        """Give the run up if it has not ended."""
        self._run.close()

    def _timeout_error(self) -> ApiError:
        assert self._timeout_s is not None
        return request_timeout(self._timeout_s)
