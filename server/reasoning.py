"""Splits a model's text into what it thinks and what it says: `<think>…</think>` first, then the message.

Pure; what comes out does not depend on how the text was cut. A template may have opened the thought at the
end of the prompt. A thought that never ends is all thought. White space around a thought belongs to neither
part.
"""

from mambad.server.tool_parsers.base import Piece, held_length

OPEN, CLOSE = "<think>", "</think>"


def has_thoughts(configured: str, template: str) -> bool:
    """Whether a model's text is to be split.

    Args:
        configured: `--reasoning-parser`: `think`, `none`, or `auto`: what the template contains.
        template: source of the chat template.
    """
    return configured == "think" or (configured == "auto" and CLOSE in template)


def is_thought_open(prompt: str, message: str = "") -> bool:
    """Whether a prompt ends within a thought: one just opened, or one in the message that is continued."""
    return prompt.rstrip().endswith(OPEN) or message.rfind(OPEN) > message.rfind(CLOSE)


class ThoughtSplitter:
    """Splits the text of one choice.

    Args:
        is_open: the prompt has opened a thought.

    Attributes:
        end: characters of the text up to the end of the thought; None while it is not known.
    """

    def __init__(self, is_open: bool = False) -> None:
        self._is_open = is_open
        self._has_begun = False  # whether the text has said if it opens a thought
        self._buffer = ""
        self._num_taken = 0
        self._space: str | None = None  # what to skip or hold; None: nothing was shown yet
        self.end: int | None = None

    def feed(self, text: str) -> list[Piece]:
        """Take the next text; return what has become certain."""
        self._num_taken += len(text)
        if self.end is not None:
            return self._say(text)
        self._buffer += text
        if not self._has_begun and not self._begin():
            return []
        return self._think() if self.end is None else self._say(self._take())

    def finish(self) -> list[Piece]:
        """Return what is held, the text having ended. The last call."""
        if self.end is None:
            if self._has_begun or self._is_open:
                return self._reason(self._buffer)
            self.end = 0
            return self._say(self._take())
        return []

    def _take(self) -> str:
        taken, self._buffer = self._buffer, ""
        return taken

    def _begin(self) -> bool:
        """Look for an opening tag; the text that has none goes on as the prompt left it."""
        start = self._buffer.lstrip()
        if len(start) < len(OPEN) and OPEN.startswith(start):
            return False
        self._has_begun = True
        if start.startswith(OPEN):
            self._buffer = start[len(OPEN) :]
        elif not self._is_open:
            self.end = 0
        return True

    def _think(self) -> list[Piece]:
        thought, tag, after = self._buffer.partition(CLOSE)
        if tag:
            self.end = self._num_taken - len(after)
            self._buffer = ""
            pieces = self._reason(thought)
            self._space = None
            return pieces + self._say(after)
        cut = len(self._buffer) - held_length(self._buffer, CLOSE)
        shown, self._buffer = self._buffer[:cut], self._buffer[cut:]
        return self._reason(shown)

    def _reason(self, text: str) -> list[Piece]:
        """Pass on a thought, without the white space at its ends."""
        if self._space is None:
            text = text.lstrip()
            if not text:
                return []
        text = (self._space or "") + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        return [Piece("reasoning", shown)] if shown else []

    def _say(self, text: str) -> list[Piece]:
        """Pass on content, without the white space between it and a thought."""
        if self._space is None and self.end:
            text = text.lstrip()
        if not text:
            return []
        self._space = ""
        return [Piece("content", text)]
