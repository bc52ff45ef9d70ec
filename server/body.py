"""Reads request bodies: their type and size, before anything looks at the content.

The body is counted as it arrives, whatever `Content-Length` says, and all bodies being read or prepared
together are bounded too.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from mambad.engine.errors import QueueFullError
from mambad.server.errors import ApiError

MAX_PENDING_BODIES = 64
"""So many bodies of the largest size may be pending at once; beyond, clients are told to come back."""


class BodyReader:
    """Reads bodies within limits. Used from the event loop only.

    Args:
        max_bytes: largest body.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._max_pending_bytes = MAX_PENDING_BODIES * max_bytes
        self._num_pending_bytes = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the body of a JSON request; it counts as pending until the block ends.

        Raises:
            ApiError: 415 for another content type or an encoding, 413 for a body that is too large.
            QueueFullError: too many bytes are pending.
            ClientDisconnect: the client went away.
        """
        check_headers(request.headers)
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._max_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        num_bytes = 0
        try:
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                chunk = message.get("body", b"")
                num_bytes += len(chunk)
                self._num_pending_bytes += len(chunk)
                if num_bytes > self._max_bytes:
                    raise self._too_large()
                if self._num_pending_bytes > self._max_pending_bytes:
                    raise QueueFullError("Too many large requests at once; please retry.")
                chunks.append(chunk)
                if not message.get("more_body", False):
                    break
            yield b"".join(chunks)
        finally:
            self._num_pending_bytes -= num_bytes

    def _too_large(self) -> ApiError:
        text = f"The request body is larger than {self._max_bytes} bytes."
        return ApiError(413, text, code="request_too_large")


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse what is no plain JSON. Asking for the type also keeps out forms that foreign web pages post.

    Raises:
        ApiError: 415.
    """
    media_type, _, parameters = headers.get("content-type", "").partition(";")
    if media_type.strip().lower() != "application/json":
        raise ApiError(415, "Content-Type must be application/json.", code="unsupported_media_type")
    charset = parameters.lower().partition("charset=")[2].strip(" \"'")
    if charset not in ("", "utf-8", "utf8"):
        raise ApiError(415, "The body must be UTF-8.", code="unsupported_media_type")
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise ApiError(415, "Content-Encoding is not supported.", code="unsupported_media_type")
