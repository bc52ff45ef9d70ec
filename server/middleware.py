"""Around every request: its id, its count, and an answer in the common form whatever happens inside.

Pure ASGI: streams pass through untouched.
"""

import logging
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mambad.server.errors import api_error_of, error_response
from mambad.server.request_metrics import RequestMetrics
from mambad.server.request_record import record_of

logger = logging.getLogger(__name__)

REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
KNOWN_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
CLIENT_GONE = 499
NO_ROUTE = "none"


class RequestIdMiddleware:
    """Gives every request an id, the client's own if it is fit for a log, and sends it back.

    The id names the request to people only: the engine has ids of its own, so two requests may share one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        record = record_of(scope)
        if record is not None:
            record.request_id = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


class AnswerMiddleware:
    """Counts answers by route, method and status; turns what nobody caught into a 500 of the common form."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = CLIENT_GONE

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception as exc:
            logger.exception("a request failed (%s %s)", scope["method"], route_of(scope))
            if status == CLIENT_GONE:
                await error_response(api_error_of(exc))(scope, receive, send_and_note)
        finally:
            method = scope["method"] if scope["method"] in KNOWN_METHODS else "other"
            self._metrics.http_requests[(route_of(scope), method, status)] += 1


def route_of(scope: Scope) -> str:
    """Return the pattern of the route that took a request: never what the client wrote."""
    return getattr(scope.get("route"), "path", NO_ROUTE)
