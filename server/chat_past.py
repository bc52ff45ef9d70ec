"""Where a conversation stood: its tokens, and enough of its text to tell whether a prompt goes on from there.

Tokens that the model wrote are not always those that the tokenizer would make of their text. So a prompt that
begins with the text of the past begins with the very tokens of the past, and only the rest is encoded. Pure.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from mambad.server.detokenizer import make_detokenizer
from mambad.server.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class ChatPast:
    """A prompt and its answer, without the token that ended the answer.

    Attributes:
        token_ids: their tokens.
        num_chars: length of their text.
        digest: SHA-256 of their text.
    """

    token_ids: Sequence[int]
    num_chars: int
    digest: bytes


class TextHash:
    """A text of which only length and digest are kept.

    Attributes:
        num_chars: its length.
    """

    def __init__(self, text: str) -> None:
        self._hash = hashlib.sha256(text.encode())
        self.num_chars = len(text)

    @property
    def digest(self) -> bytes:
        """What tells it from other texts."""
        return self._hash.digest()

    def followed_by(self, text: str) -> "TextHash":
        """Return the hash of this text and another one behind it."""
        joined = TextHash("")
        joined._hash = self._hash.copy()
        joined._hash.update(text.encode())
        joined.num_chars = self.num_chars + len(text)
        return joined


def continued_ids(prompt: str, past: ChatPast, text: TextTokenizer) -> list[int] | None:
    """Return the tokens of a prompt that goes on from the past; None if it does not."""
    if len(prompt) < past.num_chars or TextHash(prompt[: past.num_chars]).digest != past.digest:
        return None
    rest = prompt[past.num_chars :]
    ids = text.encode(rest, False)
    # A tokenizer may treat the beginning of a text in a special way.
    detokenizer = make_detokenizer(text, past.token_ids)
    if detokenizer.push_all(ids) + detokenizer.flush() != rest:
        return None
    return [*past.token_ids, *ids]
