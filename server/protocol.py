"""uvicorn's HTTP protocol with three things added: bounded request heads, errors in the common form, and a
way to drop a connection whose client reads nothing.

Given to uvicorn as `http=HttpProtocol`.
"""

import uuid

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mambad.server.errors import ApiError
from mambad.server.sse import ABORT_EXTENSION

MAX_HEAD_BYTES = 64 * 1024


class HeadTooLargeError(Exception):
    """Stops the parser; answered with 431."""


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    _num_head_bytes = 0
    _is_head_complete = False
    _is_head_too_large = False

    def data_received(self, data: bytes) -> None:
        """Parse what came, and count it while it belongs to a head that does not end."""
        super().data_received(data)
        if self._is_head_complete or self.transport.is_closing():
            return
        self._num_head_bytes += len(data)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._is_head_too_large = True
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._num_head_bytes = 0
        self._is_head_complete = False
        self.scope["extensions"] = {ABORT_EXTENSION: self.transport.abort}  # type: ignore[dict-item]

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; many small ones are bounded like one large one."""
        self._num_head_bytes += len(name) + len(value)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._is_head_too_large = True
            raise HeadTooLargeError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request."""
        self._num_head_bytes = 0
        self._is_head_complete = True
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP request that can be answered, and close the connection."""
        error = ApiError(400, "This is no valid HTTP request.", code="bad_request")
        line = b"HTTP/1.1 400 Bad Request"
        if self._is_head_too_large:
            text = f"The request's headers are larger than {MAX_HEAD_BYTES} bytes."
            error = ApiError(431, text, code="headers_too_large")
            line = b"HTTP/1.1 431 Request Header Fields Too Large"
        body = orjson.dumps(error.body())
        lines = (
            line,
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            b"x-request-id: %b" % uuid.uuid4().hex.encode(),
            b"connection: close",
        )
        self.transport.write(b"\r\n".join((*lines, b"", body)))
        self.transport.close()
