"""The Hermes dialect, also Qwen's and Granite's: each call is a JSON object between tags.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

Text around calls is content; white space next to a call only if it parts content from content. A call that is
none comes out as content, tags included. A closing tag may be missing at the end, or before the next call.
"""

import re
from collections.abc import Callable

from mambad.server.tool_parsers.base import Piece, held_length, merged
from mambad.server.tool_parsers.calls import ArgumentScanner, is_rest_of_call, read_call, read_head

OPEN, CLOSE = "<tool_call>", "</tool_call>"
TAG = re.compile(f"{OPEN}|{CLOSE}")


class HermesParser:
    """See ToolParser."""

    def __init__(self) -> None:
        self._buffer = ""
        self._num_searched = 0  # characters of the buffer in which no tag begins
        self._step: Callable[[], bool] = self._read_text
        self._space = ""  # white space that is content if content follows
        self._has_content = False
        self._follows_call = False
        self._scanner = ArgumentScanner()
        self._pieces: list[Piece] = []

    def feed(self, text: str) -> list[Piece]:
        """See ToolParser."""
        self._buffer += text
        while self._step():
            pass
        return self._take()

    def finish(self) -> list[Piece]:
        """See ToolParser."""
        if self._step == self._read_call:
            self._end_call(self._buffer, OPEN + self._buffer)
        elif self._step == self._read_rest:
            self._end_rest(self._buffer)
        elif self._step == self._read_text:
            self._say(self._buffer)
        if not self._follows_call:
            self._pieces.append(Piece("content", self._space))
        return self._take()

    def _take(self) -> list[Piece]:
        pieces, self._pieces = merged(self._pieces), []
        return pieces

    def _read_text(self) -> bool:
        """Pass on content up to the next call."""
        before, tag, after = self._buffer.partition(OPEN)
        if tag:
            self._say(before)
            self._buffer, self._step = after, self._read_call
            return True
        num_held = held_length(self._buffer, OPEN)
        cut = len(self._buffer) - num_held
        self._say(self._buffer[:cut])
        self._buffer = self._buffer[cut:]
        return False

    def _read_call(self) -> bool:
        """Find out which function is called."""
        head = read_head(self._buffer)
        if head is not None:
            name, end = head
            self._begin_call([Piece("call", name)])
            self._scanner = ArgumentScanner(breaks_at="<")
            self._buffer, self._step = self._buffer[end:], self._read_arguments
            self._num_searched = 0
            return True
        found = self._next_tag()
        if found is None:
            return False
        body, tag, after = found
        self._end_call(body, OPEN + body + (tag if tag == CLOSE else ""))
        self._buffer, self._step = after, self._read_text if tag == CLOSE else self._read_call
        return True

    def _read_arguments(self) -> bool:
        """Pass on arguments."""
        end = self._scanner.scan(self._buffer)
        self._pieces.append(Piece("arguments", self._buffer[:end]))
        self._buffer = "" if end is None else self._buffer[end:]
        if end is None:
            return False
        self._step = self._read_rest
        return True

    def _read_rest(self) -> bool:
        """Skip what closes a call."""
        found = self._next_tag()
        if found is None:
            return False
        rest, tag, after = found
        self._end_rest(rest)
        self._buffer, self._step = after, self._read_text if tag == CLOSE else self._read_call
        return True

    def _next_tag(self) -> tuple[str, str, str] | None:
        """Return the buffer before, at and after the first tag in it; nothing is searched twice."""
        match = TAG.search(self._buffer, self._num_searched)
        if match is None:
            self._num_searched = max(len(self._buffer) - len(CLOSE) + 1, 0)
            return None
        self._num_searched = 0
        return self._buffer[: match.start()], match[0], self._buffer[match.end() :]

    def _end_call(self, body: str, source: str) -> None:
        """Take a call that was waited for; `source` is content if it is none."""
        call = read_call(body)
        if call is None:
            self._say(source)
        else:
            self._begin_call(call)

    def _begin_call(self, pieces: list[Piece]) -> None:
        self._pieces += pieces
        self._follows_call = True

    def _end_rest(self, rest: str) -> None:
        if not is_rest_of_call(rest):
            self._say(rest)

    def _say(self, text: str) -> None:
        """Pass on content, but not the white space at its end."""
        if self._follows_call:
            text = self._after_call(text)
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        self._has_content |= bool(shown)
        self._pieces.append(Piece("content", shown))

    def _after_call(self, text: str) -> str:
        """Return text behind a call without the white space between them."""
        rest = text.lstrip()
        if not self._has_content:
            self._space = ""
        elif len(rest) < len(text):
            self._space = self._space or "\n"
        self._follows_call = not rest
        return rest
