"""Server-sent events: framing, keep-alive comments, and readers that stop reading.

Knows bytes only. Each event is one `data:` line; `[DONE]` is always the last.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mambad.server.disconnect import disconnected, run_while
from mambad.server.errors import ApiError

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
MEDIA_TYPE = "text/event-stream; charset=utf-8"
ABORT_EXTENSION = "mambad.abort"
"""Name of a function in `scope["extensions"]` that drops a connection with what it still has to send."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.01, 3600.0

Write = Callable[[bytes], Coroutine[Any, Any, None]]


def event(payload: dict[str, Any]) -> bytes:
    """Frame a JSON object as an event."""
    return b"data: %b\n\n" % orjson.dumps(payload)


def error_event(error: ApiError) -> bytes:
    """Frame an error that happened after the response had begun."""
    return event(error.body())


class EventStream(Response):
    """A response whose body `produce` writes.

    Args:
        produce: writes whole events and ends with DONE; cancelled when the client goes or takes nothing.
        close: called at the end, whether or not `produce` was; gives up what it would have read.
        keep_alive_s: a comment is sent after this long without an event; 0 = never.
        stall_timeout_s: the client is dropped when it has taken nothing for this long; None = never.
    """

    def __init__(
        self,
        produce: Callable[[Write], Coroutine[Any, Any, None]],
        close: Callable[[], None],
        keep_alive_s: float,
        stall_timeout_s: float | None,
    ) -> None:
        super().__init__(None, 200, HEADERS, MEDIA_TYPE)
        del self.headers["content-length"]
        self._produce = produce
        self._close = close
        self._keep_alive_s = keep_alive_s or float("inf")
        self._stall_timeout_s = float("inf") if stall_timeout_s is None else stall_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        writer = _Writer(send)
        watch = writer.watch(self._keep_alive_s, self._stall_timeout_s)
        try:
            await run_while(self._send(writer), disconnected(receive), watch)
        except ClientDisconnect:
            abort = scope.get("extensions", {}).get(ABORT_EXTENSION)
            if writer.has_stalled and abort is not None:
                abort()
                await disconnected(receive)
        finally:
            self._close()

    async def _send(self, writer: "_Writer") -> None:
        await writer.start(self.status_code, self.raw_headers)
        await self._produce(writer.write)
        await writer.end()


class _Writer:
    """Sends, and knows for how long the client has taken nothing or been sent nothing."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._clock = asyncio.get_running_loop().time
        self._blocked_since: float | None = None
        self._last_sent = self._clock()
        self.has_stalled = False

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        self._blocked_since = self._clock()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._blocked_since = None
        self._last_sent = self._clock()

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def watch(self, keep_alive_s: float, stall_timeout_s: float) -> None:
        """Send comments while nothing else is sent; return when the client has stalled."""
        while not self.has_stalled:
            await asyncio.sleep(self._pause_s(keep_alive_s, stall_timeout_s))
            if self._blocked_since is not None:
                self.has_stalled = self._clock() - self._blocked_since >= stall_timeout_s
            elif self._clock() - self._last_sent >= keep_alive_s:
                await self._send_comment(stall_timeout_s)

    def _pause_s(self, keep_alive_s: float, stall_timeout_s: float) -> float:
        """Return how long nothing needs to be looked at."""
        pause_s = min(keep_alive_s, stall_timeout_s / 4, MAX_PAUSE_S)
        if self._blocked_since is None:
            pause_s = min(pause_s, self._last_sent + keep_alive_s - self._clock())
        return max(pause_s, MIN_PAUSE_S)

    async def _send_comment(self, stall_timeout_s: float) -> None:
        """Send a comment; if the client does not take it in time, the next look finds it blocked."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(stall_timeout_s if stall_timeout_s < MAX_PAUSE_S else None):
                await self.write(KEEP_ALIVE)
