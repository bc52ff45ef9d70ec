"""Loading a tokenizer, the length that is refused without counting, and how ids are shown."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from toy_server import byte_ids, byte_tokenizer

from mambad.engine.errors import LoadError
from mambad.server.byte_table import byte_of_char, byte_table, max_bytes_per_token
from mambad.server.tokenizer import TextTokenizer, TooManyTokensError
from mambad.server.tokenizer_files import load_tokenizer

TEXT = byte_tokenizer([("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")])


def save(folder, text=TEXT, **files):
    text._tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def test_special_tokens_are_found_in_either_file_and_either_form(tmp_path):
    save(
        tmp_path,
        tokenizer_config={"eos_token": {"content": "<|endoftext|>"}, "bos_token": None},
        special_tokens_map={"bos_token": "<s>", "eos_token": "other"},
    )
    text = load_tokenizer(tmp_path)
    assert (text.bos_token, text.eos_token, text.pad_token) == ("<s>", "<|endoftext|>", None)
    assert text.document_start_id == 0, "a name without a token does not count"


@pytest.mark.parametrize("content", [None, "{", '{"version": 1}'])
def test_a_folder_without_a_readable_tokenizer_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(LoadError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_truncation_and_padding_saved_with_a_tokenizer_are_switched_off(tmp_path):
    inner = byte_tokenizer()._tokenizer
    inner.enable_truncation(3)
    inner.enable_padding(length=8)
    inner.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("hello", True) == byte_ids("hello")


@given(st.text(max_size=60), st.integers(0, 20))
def test_a_text_is_refused_exactly_when_it_has_too_many_tokens(text, max_tokens):
    num_tokens = len(TEXT.encode(text, True))
    if num_tokens <= max_tokens:
        assert len(TEXT.encode(text, True, max_tokens)) == num_tokens
        return
    with pytest.raises(TooManyTokensError) as caught:
        TEXT.encode(text, True, max_tokens)
    assert max_tokens < caught.value.num_tokens <= num_tokens
    assert caught.value.num_tokens == num_tokens or not caught.value.is_exact


def test_a_huge_text_is_refused_without_being_encoded():
    with pytest.raises(TooManyTokensError) as caught:
        TEXT.encode("hello" * 1_000_000, True, 1000)
    assert not caught.value.is_exact
    assert caught.value.num_tokens > 100_000


def bytewise(normalizer=None, pre_tokenizer=None, **added):
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(byte_of_char())}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return max_bytes_per_token(tokenizer, byte_table(tokenizer))


def test_there_is_a_bound_only_where_nothing_can_swallow_text():
    assert bytewise() == 1
    assert bytewise(normalizers.NFC()) == 4
    assert bytewise(normalizers.Strip()) is None
    assert bytewise(None, pre_tokenizers.Whitespace()) is None
    split = pre_tokenizers.Split(" ", "removed")
    assert bytewise(None, pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel()])) is None
    split = pre_tokenizers.Split(" ", "isolated")
    assert bytewise(None, pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel()])) == 1
    incomplete = Tokenizer(models.BPE({"a": 0}, []))
    incomplete.decoder = decoders.ByteLevel()
    assert max_bytes_per_token(incomplete, byte_table(incomplete)) is None


def test_what_the_tokenizer_puts_in_front_is_counted():
    inner = byte_tokenizer()._tokenizer
    inner.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    text = TextTokenizer(inner, eos_token="<|endoftext|>")
    assert text.encode("a", True) == [0, *byte_ids("a")]
    assert text.num_added_prefix == 1
    assert TEXT.num_added_prefix == 0


def test_ids_are_shown_as_text_or_as_bytes():
    assert TEXT.token_text(byte_ids("a")[0]) == "a"
    assert TEXT.token_text(byte_ids(b"\xc3")[0]) == "bytes:\\xc3"
    assert TEXT.token_text(0) == "<|endoftext|>"
    assert TEXT.token_text(10_000) == ""
    assert TEXT.token(10_000) == ""
