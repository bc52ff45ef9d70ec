"""Where HTTP requests come in: reads the body, finds the request's key, and passes the answer through.

Serve's own proxy routes before the body is known, so this small deployment stands between it and the
replicas. It keeps nothing, and can have several replicas itself.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import orjson
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from mambad_ray.affinity import key_of

SCOPE_KEYS = (
    "type",
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "query_string",
    "headers",
    "client",
)
DONE = b"data: [DONE]\n\n"
Message = dict[str, Any]


class Door:
    """Forwards requests.

    Args:
        replicas: the deployment of `Replica`.
        max_body_bytes: what a replica takes; it refuses what is longer without seeing all of it.
    """

    def __init__(self, replicas: DeploymentHandle[Any], max_body_bytes: int) -> None:
        self._replicas = replicas.options(method_name="answer", stream=True)
        self._max_body_bytes = max_body_bytes

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        body = await self._read(request)
        key = key_of(request.headers, _parsed(body))
        call: Any = self._replicas.remote(key, _bare(request.scope), body)
        messages = aiter(call)
        try:
            start = await anext(messages)
        except BackPressureError:
            return _error(429, "Too many requests wait already.", "rate_limit_error", "queue_full")
        except (RayError, RayServeException, StopAsyncIteration):
            return _error(503, "The replica has gone; please retry.", "server_error", "engine_dead")
        response = StreamingResponse(_parts(messages, start), start["status"])
        response.raw_headers = list(start["headers"])
        return response

    async def _read(self, request: Request) -> bytes:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._max_body_bytes:
                break
        return bytes(body)


async def _parts(messages: AsyncIterator[Message], start: Message) -> AsyncIterator[bytes]:
    """Yield the body; a replica that dies in mid-stream ends it with an error event."""
    try:
        async for message in messages:
            yield message.get("body", b"")
    except (RayError, RayServeException):
        if not dict(start["headers"]).get(b"content-type", b"").startswith(b"text/event-stream"):
            raise
        error = _error_body("The replica has gone.", "server_error", "engine_dead")
        yield b"data: " + error + b"\n\n" + DONE


def _parsed(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _bare(scope: Any) -> Message:
    """Keep what can be sent to another process, and means something there."""
    kept = {key: scope[key] for key in SCOPE_KEYS if key in scope}
    return {**kept, "headers": list(kept["headers"]), "root_path": "", "extensions": {}}


def _error(status: int, message: str, kind: str, code: str) -> Response:
    headers = {"retry-after": "1"}
    return Response(_error_body(message, kind, code), status, headers, "application/json")


def _error_body(message: str, kind: str, code: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
