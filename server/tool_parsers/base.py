"""What a tool parser is: a model's text in, piece by piece; content and calls out.

Each dialect stands in a module of its own. What a parser makes never depends on how the text was cut, and
nothing that the model wrote is lost: what is no call after all comes out as content.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple, Protocol

PieceKind = Literal["content", "reasoning", "call", "arguments"]


class Piece(NamedTuple):
    """A part of a message.

    `content` and `reasoning` carry text. `call` begins a call and carries the function's name; the
    `arguments` that follow it carry parts of a JSON text, as the model wrote it.
    """

    kind: PieceKind
    text: str


class ToolParser(Protocol):
    """Reads the text of one choice."""

    def feed(self, text: str) -> list[Piece]:
        """Take the next text; return what has become certain."""
        ...

    def finish(self) -> list[Piece]:
        """Return what is left, the text having ended. The last call."""
        ...


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Join neighbours of one kind, and leave out what is empty."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].kind == piece.kind and piece.kind != "call":
            joined[-1] = Piece(piece.kind, joined[-1].text + piece.text)
        elif piece.text:
            joined.append(piece)
    return joined


def held_length(text: str, marker: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a marker."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
