"""Calls that a grammar forced: the whole text is JSON of a known form, whatever the model's own dialect is.

A call of any function is an element of a list, `[{"name": "f", "arguments": {…}}, …]`. A call of one named
function is only its arguments. A text that was cut short comes out as far as it goes.
"""

from collections.abc import Callable

from mambad.server.tool_parsers.base import Piece, merged
from mambad.server.tool_parsers.calls import ArgumentScanner, read_head

SPACE = " \t\n\r"


class NamedParser:
    """The arguments of one function; see ToolParser."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def feed(self, text: str) -> list[Piece]:
        """See ToolParser."""
        if not text:
            return []
        begin = [] if self._name is None else [Piece("call", self._name)]
        self._name = None
        return [*begin, Piece("arguments", text)]

    def finish(self) -> list[Piece]:
        """See ToolParser."""
        return []


class ListParser:
    """A list of calls; see ToolParser."""

    def __init__(self) -> None:
        self._buffer = ""
        self._step: Callable[[], bool] = self._read_between
        self._scanner = ArgumentScanner()
        self._pieces: list[Piece] = []

    def feed(self, text: str) -> list[Piece]:
        """See ToolParser."""
        self._buffer += text
        while self._buffer and self._step():
            pass
        return self._take()

    def finish(self) -> list[Piece]:
        """See ToolParser."""
        if self._step == self._read_head:
            self._pieces.append(Piece("content", self._buffer))
        return self._take()

    def _take(self) -> list[Piece]:
        pieces, self._pieces = merged(self._pieces), []
        return pieces

    def _read_between(self) -> bool:
        """Skip what stands between two calls."""
        self._buffer = self._buffer.lstrip(SPACE + "[],}")
        if self._buffer:
            self._step = self._read_head if self._buffer.startswith("{") else self._read_content
        return bool(self._buffer)

    def _read_head(self) -> bool:
        head = read_head(self._buffer)
        if head is None:
            return False
        name, end = head
        self._pieces.append(Piece("call", name))
        self._scanner = ArgumentScanner()
        self._buffer, self._step = self._buffer[end:], self._read_arguments
        return True

    def _read_arguments(self) -> bool:
        end = self._scanner.scan(self._buffer)
        self._pieces.append(Piece("arguments", self._buffer[:end]))
        self._buffer = "" if end is None else self._buffer[end:]
        if end is not None:
            self._step = self._read_between
        return True

    def _read_content(self) -> bool:
        """No grammar lets this happen; it is not lost, though."""
        self._pieces.append(Piece("content", self._buffer))
        self._buffer = ""
        return False
