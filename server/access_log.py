"""One log line a request, after its answer has gone out. Pure ASGI, outside of everything else.

Knows no bodies: tokens and finish reasons are in the metrics.
"""

import logging
import time
from collections.abc import Collection
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

CUT_OFF = 499  # what nginx calls a client that left before the answer began


class AccessLog:
    """Logs method, path, status, duration, client and request id.

    Args:
        app: the application.
        quiet_paths: paths that leave no line.
    """

    def __init__(self, app: ASGIApp, quiet_paths: Collection[str]) -> None:
        self._app = app
        self._quiet_paths = frozenset(quiet_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; log it when it is over, however that is."""
        if scope["type"] != "http" or scope["path"] in self._quiet_paths:
            await self._app(scope, receive, send)
            return
        start_s = time.monotonic()
        status, request_id = CUT_OFF, None

        async def note(message: Message) -> None:
            nonlocal status, request_id
            if message["type"] == "http.response.start":
                status = message["status"]
                request_id = Headers(raw=message.get("headers", [])).get("x-request-id")
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            client = scope.get("client")
            logger.info(
                "%s %s",
                scope["method"],
                quote(scope["path"]),  # a line break in it would forge a line
                extra={
                    "status": status,
                    "duration_s": round(time.monotonic() - start_s, 4),
                    "client": client[0] if client else None,
                    "request_id": request_id,
                },
            )
