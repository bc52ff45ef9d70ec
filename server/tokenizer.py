"""The model's tokenizer: text ↔ token ids, and what each id looks like.

Owns the `tokenizers` object and the tables made from it. Knows nothing of requests. Every method may be
called from any thread; encoding releases the interpreter lock.
"""

import re
from collections.abc import Sequence
from functools import cached_property

from tokenizers import Tokenizer

from mambad.server.byte_table import byte_table, max_bytes_per_token

SPACE_MARK = "\u2581"
BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


class TextTokenizer:
    """Encodes and decodes for one model.

    Args:
        tokenizer: as loaded from `tokenizer.json`; its truncation and padding are switched off.
        bos_token, eos_token, pad_token: texts of the special tokens, None where the model has none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        pad_token: str | None = None,
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.bos_token, self.eos_token, self.pad_token = bos_token, eos_token, pad_token
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(id for id, token in added.items() if token.special)
        self.token_bytes: list[bytes] | None = byte_table(tokenizer)
        """Bytes of every id, for byte-level vocabularies; None for others."""
        self._max_bytes_per_token = max_bytes_per_token(tokenizer, self.token_bytes)

    @cached_property
    def num_added_prefix(self) -> int:
        """Special tokens that the tokenizer puts in front of a text by itself."""
        bare, full = self.encode("x", False), self.encode("x", True)
        return next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)

    @property
    def document_start_id(self) -> int | None:
        """What an empty prompt becomes: beginning of sequence, else end of sequence, else None."""
        for token in (self.bos_token, self.eos_token):
            token_id = None if token is None else self._tokenizer.token_to_id(token)
            if token_id is not None:
                return token_id
        return None

    def encode(self, text: str, add_special_tokens: bool, max_tokens: int | None = None) -> list[int]:
        """Return the ids of a text.

        Args:
            text: any string; texts of special tokens in it become those tokens.
            add_special_tokens: whether the tokenizer adds what it adds around a text.
            max_tokens: more than this many raise, at little cost.

        Raises:
            TooManyTokensError: the text has more tokens than `max_tokens`.
        """
        if max_tokens is not None:
            # A text of this many bytes can't have fewer tokens: there is no need to count them.
            floor = -(-len(text.encode()) // self._max_bytes_per_token) if self._max_bytes_per_token else 0
            if floor > max_tokens:
                raise TooManyTokensError(floor, is_exact=False)
        # One text goes through the batch call because only that one releases the interpreter lock.
        encoding = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        if max_tokens is not None and len(encoding) > max_tokens:
            raise TooManyTokensError(len(encoding), is_exact=True)
        return list(encoding.ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ids; bytes that are no UTF-8 become U+FFFD."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str:
        """Return an id as the vocabulary spells it; empty if no token has this id."""
        return self._tokenizer.id_to_token(token_id) or ""

    def id_of(self, token: str) -> int | None:
        """Return the id of a token as the vocabulary spells it; None if there is none."""
        return self._tokenizer.token_to_id(token)

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes that an id stands for."""
        if self.token_bytes is not None:
            return self.token_bytes[token_id] if token_id < len(self.token_bytes) else b""
        token = self.token(token_id)
        match = BYTE_TOKEN.fullmatch(token)
        return bytes([int(match[1], 16)]) if match else token.replace(SPACE_MARK, " ").encode()

    def token_text(self, token_id: int) -> str:
        r"""Return an id as text that stands alone; `bytes:\x..` when its bytes are no UTF-8."""
        if self.token_bytes is None:
            return self.token(token_id).replace(SPACE_MARK, " ")
        data = self.token_bytes[token_id] if token_id < len(self.token_bytes) else b""
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class TooManyTokensError(Exception):
    """A text has more tokens than its caller can use; never leaves `server`.

    Attributes:
        num_tokens: how many.
        is_exact: False when there are at least that many.
    """

    def __init__(self, num_tokens: int, *, is_exact: bool) -> None:
        super().__init__(num_tokens, is_exact)
        self.num_tokens = num_tokens
        self.is_exact = is_exact
