"""Incremental detokenizers against decoding everything at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from toy_server import FIRST_BYTE_ID, byte_ids, byte_tokenizer

from mambad.server.detokenizer import ByteDetokenizer, WindowDetokenizer, make_detokenizer
from mambad.server.tokenizer import TextTokenizer


def with_added_tokens() -> TextTokenizer:
    """A byte-level vocabulary with merges, and added tokens in and out of the byte alphabet."""
    text = byte_tokenizer([("h", "e"), ("Ã", "©"), ("ð", "Ł")])
    text._tokenizer.add_tokens([AddedToken("two words"), AddedToken("é!"), AddedToken("日本")])
    return TextTokenizer(text._tokenizer, eos_token="<|endoftext|>")


def sentencepiece_like() -> TextTokenizer:
    """Words with a space mark, bytes as a fallback, and a decoder that strips the first space."""
    words = ["<unk>", "\u2581hello", "\u2581world", "lo", "\u2581", "é"]
    vocab = {word: i for i, word in enumerate(words)}
    vocab |= {f"<0x{byte:02X}>": len(words) + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return TextTokenizer(tokenizer, eos_token="<unk>")


BYTES = with_added_tokens()
PIECES = sentencepiece_like()
NUM_IDS = len(BYTES.token_bytes)


@given(st.lists(st.integers(0, NUM_IDS - 1), max_size=40))
def test_byte_level_pieces_join_to_what_the_tokenizer_decodes(token_ids):
    detokenizer = make_detokenizer(BYTES)
    assert isinstance(detokenizer, ByteDetokenizer)
    pieces = [detokenizer.push(token_id) for token_id in token_ids]
    assert "".join(pieces) + detokenizer.flush() == BYTES.decode(token_ids)


@given(st.text(max_size=20), st.integers(0, 3))
def test_only_whole_code_points_come_out(text, num_cut):
    token_ids = byte_ids(text)
    token_ids = token_ids[: len(token_ids) - num_cut]
    detokenizer = make_detokenizer(BYTES)
    shown = "".join(map(detokenizer.push, token_ids))
    assert text.startswith(shown)
    rest = detokenizer.flush()
    assert rest in ("", "\ufffd")
    assert shown + rest == bytes(token_id - FIRST_BYTE_ID for token_id in token_ids).decode(errors="replace")


@pytest.mark.parametrize("text", [BYTES, PIECES])
@given(st.data())
def test_pushing_all_at_once_equals_pushing_one_by_one(text, data):
    max_id = NUM_IDS - 1 if text is BYTES else 261
    ids = data.draw(st.lists(st.integers(0, max_id), max_size=20))
    if text is PIECES:
        # a run of byte tokens stands for itself only when it is whole UTF-8
        ids = [i for i in ids if i < 6 + 0x80]
    slow, fast = make_detokenizer(text), make_detokenizer(text)
    one_by_one = "".join(map(slow.push, ids)) + slow.flush()
    assert fast.push_all(ids) + fast.flush() == one_by_one


def test_pushing_a_prompt_that_ends_within_a_character_leaves_it_to_the_next_token():
    emoji = "😀".encode()
    for text, first in ((BYTES, FIRST_BYTE_ID), (PIECES, 6)):
        ids = [first + byte for byte in b"ab" + emoji]
        detokenizer = make_detokenizer(text)
        assert detokenizer.push_all(ids[:4]) == "ab"
        assert "".join(map(detokenizer.push, ids[4:])) == "😀"


def test_a_sentencepiece_continuation_keeps_its_space():
    detokenizer = make_detokenizer(PIECES, context_ids=[1])
    assert isinstance(detokenizer, WindowDetokenizer)
    assert [detokenizer.push(token_id) for token_id in (2, 3, 1)] == [" world", "lo", " hello"]
    assert make_detokenizer(PIECES).push(2) == "world"


@given(st.lists(st.sampled_from([1, 2, 3, 5]), max_size=30))
def test_sentencepiece_pieces_join_to_what_the_tokenizer_decodes(token_ids):
    detokenizer = make_detokenizer(PIECES)
    pieces = [detokenizer.push(token_id) for token_id in token_ids]
    assert "".join(pieces) + detokenizer.flush() == PIECES.decode(token_ids)


def test_bytes_that_never_become_text_are_not_held_for_ever():
    detokenizer = make_detokenizer(PIECES)
    pieces = [detokenizer.push(6 + 0xFF) for _ in range(100)]
    assert len("".join(pieces)) >= 90
    assert len(detokenizer._window) < 20
