"""What a byte-level vocabulary tells without running the tokenizer: the bytes of each id.

Pure functions over the tokenizer's own description of itself.
"""

import json
from typing import Any

from tokenizers import Tokenizer

# How much shorter, in UTF-8 bytes, a normalizer can make a text. NFC composes at most four code points of
# two bytes into one of three.
NORMALIZER_SHRINKS_BY = {"NFC": 4}
KEEPS_EVERY_BYTE = ("ByteLevel", "Digits", "Punctuation", "Split")


def byte_of_char() -> dict[str, int]:
    """Return GPT-2's alphabet: a printable character for each of the 256 bytes."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    chars = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in set(plain)]
    chars.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return chars


def byte_table(tokenizer: Tokenizer) -> list[bytes] | None:
    """Return the bytes of every id, or None if the vocabulary is not byte-level.

    A token with a character outside the alphabet (an added one with a space, say) stands for its own UTF-8,
    as in the ByteLevel decoder.
    """
    decoder = _description(tokenizer)["decoder"] or {}
    if decoder.get("type") != "ByteLevel":
        return None
    alphabet = byte_of_char()
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocab.values(), default=-1) + 1)
    for token, token_id in vocab.items():
        if all(char in alphabet for char in token):
            table[token_id] = bytes(alphabet[char] for char in token)
        else:
            table[token_id] = token.encode()
    return table


def max_bytes_per_token(tokenizer: Tokenizer, table: list[bytes] | None) -> int | None:
    """Return how many bytes of text one token can stand for, or None if there is no such bound.

    There is none when something can swallow text: a normalizer, a pre-tokenizer that removes, an added token
    that strips what is around it, a byte without a token.
    """
    if table is None:
        return None
    description = _description(tokenizer)
    shrink = 1
    if description["normalizer"] is not None:
        shrink = NORMALIZER_SHRINKS_BY.get(description["normalizer"]["type"], 0)
    vocab = tokenizer.get_vocab(with_added_tokens=False)
    is_complete = all(char in vocab for char in byte_of_char())
    strips = any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values())
    if not shrink or not is_complete or strips or not _keeps_every_byte(description["pre_tokenizer"]):
        return None
    return shrink * max(map(len, table))


def _keeps_every_byte(pre_tokenizer: dict[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return False
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    return any(step["type"] == "ByteLevel" for step in steps) and all(
        step["type"] in KEEPS_EVERY_BYTE and step.get("behavior") != "Removed" for step in steps
    )


def _description(tokenizer: Tokenizer) -> dict[str, Any]:
    description: dict[str, Any] = json.loads(tokenizer.to_str())
    return description
