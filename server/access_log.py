"""One log line a request, and its span if there are traces, when it is over. Pure ASGI, the outermost layer.

Owns the request's record; the layers within fill it in. What the engine tells of a request after its answer
has gone out is waited for, beside the next requests.
"""

import asyncio
import logging
import re
import time
from collections.abc import Collection
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mambad.server.errors import ERROR_KEY
from mambad.server.request_record import CURRENT, KEY, RequestRecord
from mambad.server.tracing import Tracer, traced_route

logger = logging.getLogger(__name__)

TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
LAST_LINES_TIMEOUT_S = 1.0


class AccessLog:
    """Logs method, path, status, times, tokens, client and ids.

    Args:
        app: the application.
        quiet_paths: paths that leave no line.
        tracer: makes spans of requests for text; None makes none.
    """

    def __init__(self, app: ASGIApp, quiet_paths: Collection[str], tracer: Tracer | None = None) -> None:
        self._app = app
        self._quiet_paths = frozenset(quiet_paths)
        self._tracer = tracer
        self._unfinished: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; log it when it is over, however that is."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = self._begin(scope)

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                record.request_id = Headers(raw=message.get("headers", [])).get("x-request-id")
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            self._end(scope, record)

    async def flush(self) -> None:
        """Write the lines that wait for the engine's last word, for which there is hardly any time left."""
        if self._unfinished:
            await asyncio.wait(self._unfinished, timeout=LAST_LINES_TIMEOUT_S)
        for task in self._unfinished:
            task.cancel()
        await asyncio.gather(*self._unfinished, return_exceptions=True)

    def _begin(self, scope: Scope) -> RequestRecord:
        headers = Headers(scope=scope)
        traceparent = TRACEPARENT.fullmatch(headers.get("traceparent", ""))
        record = RequestRecord(scope["method"], scope["path"], trace_id=traceparent and traceparent[1])
        route = None if self._tracer is None else traced_route(scope)
        if self._tracer is not None and route is not None:
            record.span = self._tracer.begin(route, headers)
            record.trace_id = record.span.trace_id or record.trace_id
        scope.setdefault("state", {})[KEY] = record
        CURRENT.set(record)
        return record

    def _end(self, scope: Scope, record: RequestRecord) -> None:
        record.ended_s = time.monotonic()
        record.error = scope["state"].get(ERROR_KEY)
        if record.is_settled:
            self._write(scope, record)
            return
        task = asyncio.create_task(self._write_settled(scope, record))
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)

    async def _write_settled(self, scope: Scope, record: RequestRecord) -> None:
        try:
            await record.settled()
        finally:
            self._write(scope, record)

    def _write(self, scope: Scope, record: RequestRecord) -> None:
        if record.span is not None:
            record.span.end(record)
        if record.path not in self._quiet_paths:
            client = scope.get("client")
            # A line break in a path would forge a line.
            text = f"{record.method} {quote(record.path)}"
            logger.info("%s", text, extra=record.fields() | {"client": client[0] if client else None})
