"""The load of the server in a header of its answers, for load balancers that ask for it (ORCA).

A request with `endpoint-load-metrics-format: TEXT` (or `JSON`) gets `endpoint-load-metrics` in the head of a
good answer, streams included. Pure ASGI; other requests cost one look at their headers.
"""

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mambad.server.engine_port import EnginePort

REQUEST_HEADER = "endpoint-load-metrics-format"
ANSWER_HEADER = "endpoint-load-metrics"


class LoadHeaderMiddleware:
    """Adds the header."""

    def __init__(self, app: ASGIApp, engine: EnginePort) -> None:
        self._app = app
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        is_asked = scope["type"] == "http" and scope["method"] == "POST"
        form = Headers(scope=scope).get(REQUEST_HEADER, "").upper() if is_asked else ""
        if form not in ("TEXT", "JSON"):
            await self._app(scope, receive, send)
            return

        async def send_with_load(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                MutableHeaders(scope=message)[ANSWER_HEADER] = self._load(form)
            await send(message)

        await self._app(scope, receive, send_with_load)

    def _load(self, form: str) -> str:
        stats = self._engine.stats
        metrics = {
            "kv_cache_usage_perc": round(max((each.cache_usage_ratio for each in stats), default=0.0), 4),
            "num_requests_waiting": sum(each.num_waiting + each.num_preempted for each in stats),
        }
        if form == "JSON":
            return f"JSON {orjson.dumps({'named_metrics': metrics}).decode()}"
        return "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in metrics.items())
