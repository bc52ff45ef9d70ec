"""One choice of a chat: the text's deltas in, parts of a message out.

    Delta (choice.py) → thought | message (reasoning.py) → content | calls (tool_parsers) → Piece

The one code path behind streamed and whole answers. Pure: no HTTP, no clock.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mambad.server.choice import Delta
from mambad.server.reasoning import ThoughtSplitter
from mambad.server.tool_parsers.base import Piece, ToolParser, merged

TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFormat:
    """How messages are read from texts; the same for all choices of a request.

    Attributes:
        has_thoughts: whether thoughts are split off.
        is_thought_open: the prompt has opened a thought.
        shows_thoughts: whether thoughts are part of the message.
        make_tool_parser: makes what finds calls; None finds none.
        is_parallel: whether calls after the first one are part of the message.
        tells_calls: whether an answer with a call ends for the reason `tool_calls`.
        prefix: content that comes first.
    """

    has_thoughts: bool = False
    is_thought_open: bool = False
    shows_thoughts: bool = True
    make_tool_parser: Callable[[], ToolParser] | None = None
    is_parallel: bool = True
    tells_calls: bool = True
    prefix: str = ""


class ChatChoice:
    """Makes the message of one choice.

    Attributes:
        num_calls: calls so far that are part of the message.
    """

    def __init__(self, form: MessageFormat) -> None:
        self._form = form
        self._splitter = ThoughtSplitter(form.is_thought_open) if form.has_thoughts else None
        self._parser = None if form.make_tool_parser is None else form.make_tool_parser()
        self._starts: list[int] = []  # where each token of the thought begins
        self._num_chars = 0
        self._is_dropping = False  # within a call that is not part of the message
        self.num_calls = 0

    @property
    def num_reasoning_tokens(self) -> int:
        """Generated tokens so far that belong to a thought, its tags included."""
        if self._splitter is None:
            return 0
        end = self._splitter.end
        return len(self._starts) if end is None else bisect_left(self._starts, end)

    @property
    def thought_end(self) -> int | None:
        """Characters of the text up to the end of the thought; None while it is not known."""
        return 0 if self._splitter is None else self._splitter.end

    def feed(self, delta: Delta) -> list[Piece]:
        """Take the next delta of the choice; return what it adds to the message."""
        if self._splitter is None and self._parser is None:
            return [Piece("content", delta.text)] if delta.text else []
        self._count(delta.ends)
        pieces = self._split(delta)
        if self._parser is not None:
            pieces = self._parse(pieces, delta.finish_reason is not None)
        return [piece for piece in merged(pieces) if self._is_shown(piece)]

    def finish_reason(self, delta: Delta) -> str | None:
        """Return what the client is told of the end, after `feed`."""
        if delta.finish_reason == "stop" and self.num_calls and self._form.tells_calls:
            return TOOL_CALLS
        return delta.finish_reason

    def _count(self, ends: Sequence[int]) -> None:
        if self._splitter is None or self._splitter.end is not None:
            return
        for end in ends:
            self._starts.append(self._num_chars)
            self._num_chars = end

    def _split(self, delta: Delta) -> list[Piece]:
        if self._splitter is None:
            return [Piece("content", delta.text)]
        pieces = self._splitter.feed(delta.text)
        return pieces if delta.finish_reason is None else pieces + self._splitter.finish()

    def _parse(self, pieces: list[Piece], is_last: bool) -> list[Piece]:
        assert self._parser is not None
        parsed = []
        for piece in pieces:
            parsed += self._parser.feed(piece.text) if piece.kind == "content" else [piece]
        return parsed + self._parser.finish() if is_last else parsed

    def _is_shown(self, piece: Piece) -> bool:
        if piece.kind == "call":
            self._is_dropping = self.num_calls > 0 and not self._form.is_parallel
            self.num_calls += not self._is_dropping
        if piece.kind in ("call", "arguments"):
            return not self._is_dropping
        return self._form.shows_thoughts or piece.kind == "content"
