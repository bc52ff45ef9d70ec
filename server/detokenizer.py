"""Token ids → text, one at a time: the only way in which answers get their text, streamed or not.

    ids → Detokenizer → pieces → StopMatcher (stop_strings.py) → text that may be shown

A piece holds complete code points only: bytes of an unfinished one wait for the next token, and what is still
unfinished at the end becomes U+FFFD. Each token costs the same, however long the text has become. No HTTP.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol

from mambad.server.tokenizer import TextTokenizer

NUM_CONTEXT_TOKENS = 6
MAX_PENDING_TOKENS = 8
REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """Makes one request's text. Not shared; one for each choice."""

    def push(self, token_id: int) -> str:
        """Return the text that becomes certain with this token; often empty within a code point."""
        ...

    def push_all(self, token_ids: Sequence[int]) -> str:
        """Return what pushing each in turn would, in far less time."""
        ...

    def flush(self) -> str:
        """Return what is still held, U+FFFD for unfinished bytes. The last call."""
        ...


def make_detokenizer(text: TextTokenizer, context_ids: Sequence[int] = ()) -> Detokenizer:
    """Return a detokenizer whose text follows on from `context_ids` (the end of the prompt, or nothing)."""
    if text.token_bytes is not None:
        return ByteDetokenizer(text.token_bytes)
    return WindowDetokenizer(text, context_ids)


class ByteDetokenizer:
    """For byte-level vocabularies: an id is a fixed run of bytes, wherever it stands."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """See Detokenizer."""
        is_known = 0 <= token_id < len(self._token_bytes)
        return self._decoder.decode(self._token_bytes[token_id]) if is_known else ""

    def push_all(self, token_ids: Sequence[int]) -> str:
        """See Detokenizer."""
        table = self._token_bytes
        return self._decoder.decode(b"".join([table[id] for id in token_ids if 0 <= id < len(table)]))

    def flush(self) -> str:
        """See Detokenizer."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For all other vocabularies: decodes a short window with the token and without it.

    A token's text may depend on what stands before it (a space at the start of a sentence, a byte of a code
    point), so the window begins a few tokens earlier. It ends with a token whose text was shown.
    """

    def __init__(self, text: TextTokenizer, context_ids: Sequence[int] = ()) -> None:
        self._text = text
        self._window = list(context_ids[-NUM_CONTEXT_TOKENS:])
        self._num_shown = len(self._window)

    def push(self, token_id: int) -> str:
        """See Detokenizer."""
        self._window.append(token_id)
        piece = self._piece()
        num_pending = len(self._window) - self._num_shown
        if num_pending < MAX_PENDING_TOKENS and (not piece or piece.endswith(REPLACEMENT)):
            return ""
        self._advance()
        return piece

    def push_all(self, token_ids: Sequence[int]) -> str:
        """See Detokenizer."""
        before = self._window
        piece, cut = "", 0
        for num_unfinished in range(MAX_PENDING_TOKENS):
            cut = max(len(token_ids) - num_unfinished, 0)
            self._window = [*before, *token_ids[:cut]]
            piece = self._piece()
            if not piece.endswith(REPLACEMENT):
                break
        self._advance()
        return piece + "".join(map(self.push, token_ids[cut:]))

    def flush(self) -> str:
        """See Detokenizer."""
        piece = self._piece()
        self._advance()
        return piece

    def _piece(self) -> str:
        shown = self._text.decode(self._window[: self._num_shown])
        return self._text.decode(self._window)[len(shown) :]

    def _advance(self) -> None:
        """Everything in the window has been shown: keep its end as context."""
        self._window = self._window[-NUM_CONTEXT_TOKENS:]
        self._num_shown = len(self._window)
