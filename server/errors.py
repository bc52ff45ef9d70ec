"""Exception → status and OpenAI error body: the only such mapping.

    {"error": {"message", "type", "param", "code"}}

Every answer that is not 2xx has this form, whatever the path. Bodies stay small, hold no traceback and
nothing of what the client sent except names of fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mambad.engine.errors import (
    EngineDeadError,
    EngineError,
    NotReadyError,
    QueueFullError,
    RequestError,
    ServiceError,
)
from mambad.engine.outputs import RequestOutput

MAX_MESSAGE_CHARS = 2000
MAX_VALIDATION_ERRORS = 10
MAX_DETAIL_CHARS = 200
RETRY_LATER = {"retry-after": "5"}
RETRY_SOON = {"retry-after": "1"}
ERROR_KEY = "error"
CANCELLED = "cancelled"
"""Code of what was ended on purpose, by an administrator or the response's own client."""
DO_NOT_RETRY = {"x-should-retry": "false"}


@dataclass(eq=False)
class ApiError(Exception):
    """What a client is told when a request can't be answered.

    Attributes:
        status: HTTP status; mid-stream only the body is sent.
        message, param, code: as in the OpenAI error body.
        headers: extra response headers.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = "invalid_value"
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    @property
    def type(self) -> str:
        """OpenAI's name for the kind of error."""
        special = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        if self.status >= 500:
            return "server_error"
        return special.get(self.status, "invalid_request_error")

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        error = {
            "message": self.message[:MAX_MESSAGE_CHARS],
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}


def invalid(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """Return the 400 for a field that can't be honoured."""
    return ApiError(400, message, param, code)


class ErrorResponse(Response):
    """The HTTP answer for an error; leaves the error in the request's state, for whoever logs it."""

    def __init__(self, error: ApiError) -> None:
        body = orjson.dumps(error.body())
        super().__init__(body, error.status, dict(error.headers), media_type="application/json")
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        scope.setdefault("state", {})[ERROR_KEY] = self._error
        await super().__call__(scope, receive, send)


def error_response(error: ApiError) -> Response:
    """Return the HTTP answer for an error."""
    return ErrorResponse(error)


def api_error_of(exc: Exception) -> ApiError:
    """Map any exception to what the client is told; what was not raised on purpose becomes a bare 500."""
    if isinstance(exc, ApiError):
        return exc
    if isinstance(exc, EngineError):
        return _of_engine(exc)
    if isinstance(exc, ValidationError):
        return _of_validation(exc.errors(include_url=False, include_context=False, include_input=False))
    if isinstance(exc, RequestValidationError):
        return _of_validation(exc.errors())
    if isinstance(exc, HTTPException):
        return _of_http(exc)
    return ApiError(500, "The server failed on this request.", code="internal_error")


def failure_of(output: RequestOutput) -> ApiError | None:
    """Return what the client is told about a request that ended otherwise than by `stop` or `length`."""
    reason = output.finish_reason
    if reason in (None, "stop", "length"):
        return None
    message = output.error
    if reason == "timeout":
        text = message or "The request waited too long for its turn; please retry."
        return ApiError(429, text, code="queue_timeout", headers=RETRY_SOON)
    if reason == "shutdown":
        text = message or "The server is shutting down; please retry."
        return ApiError(503, text, code="shutdown", headers=RETRY_LATER)
    if reason == "error":
        if output.error_code == "engine_dead":
            return ApiError(503, message or "The engine has gone.", code="engine_dead", headers=RETRY_LATER)
        code = output.error_code or "engine_error"
        # What a grammar led to is what it will lead to again.
        headers = DO_NOT_RETRY if "grammar" in code else {}
        return ApiError(500, message or "The engine failed.", code=code, headers=headers)
    return ApiError(500, message or "The request was cancelled.", code=CANCELLED, headers=DO_NOT_RETRY)


def request_timeout(timeout_s: float) -> ApiError:
    """Return the error of a request that took longer than it may."""
    text = f"The request took longer than the {timeout_s:g} s that this server allows."
    return ApiError(408, text, code="timeout", headers=DO_NOT_RETRY)


def _of_engine(exc: EngineError) -> ApiError:
    if isinstance(exc, QueueFullError):
        return ApiError(429, str(exc), code=exc.code, headers=RETRY_SOON)
    if isinstance(exc, RequestError):
        return ApiError(400, str(exc), exc.param, exc.code)
    if isinstance(exc, NotReadyError | EngineDeadError):
        return ApiError(503, str(exc), code=exc.code, headers=RETRY_LATER)
    if isinstance(exc, ServiceError):
        return ApiError(500, str(exc), code=exc.code)
    return ApiError(500, "The server failed on this request.", code="internal_error")


def _of_http(exc: HTTPException) -> ApiError:
    if exc.status_code == 404:
        return ApiError(404, "There is nothing at this path.", code="not_found")
    if exc.status_code == 405:
        return ApiError(
            405, "The path does not answer this method.", code="method_not_allowed", headers=exc.headers or {}
        )
    message = str(exc.detail) or HTTPStatus(exc.status_code).phrase
    return ApiError(exc.status_code, message, code=None, headers=exc.headers or {})


def _of_validation(errors: Sequence[Any]) -> ApiError:
    """Name the fields at fault; pydantic's own texts would repeat the input in every entry."""
    first = errors[:MAX_VALIDATION_ERRORS]
    lines = [f"{_path(error['loc'])}: {error['msg']}"[:MAX_DETAIL_CHARS] for error in first]
    if len(errors) > MAX_VALIDATION_ERRORS:
        lines.append(f"and {len(errors) - MAX_VALIDATION_ERRORS} more")
    param = _path(errors[0]["loc"])[:MAX_DETAIL_CHARS] or None
    return ApiError(400, "; ".join(lines), param)


def _path(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in loc)
