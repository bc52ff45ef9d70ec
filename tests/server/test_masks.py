"""`allowed_token_ids` and `bad_words` on their way to the engine, and what is wrong with them."""

import orjson
import pytest
from toy_server import byte_ids, byte_tokenizer, toy_info

from mambad.server.convert import Converter
from mambad.server.errors import ApiError
from mambad.server.sampling import read_bad_words
from mambad.server.settings import AppSettings

LIMITS = toy_info(max_model_len=100, vocab_size=257)


def params_of(**body):
    converter = Converter(byte_tokenizer(), AppSettings(served_model_names=("m",)))
    return converter.completion(orjson.dumps({"prompt": "p", **body}), LIMITS).params


def test_allowed_ids_arrive_sorted_and_once():
    assert params_of(allowed_token_ids=[9, 3, 9]).allowed_token_ids == (3, 9)


@pytest.mark.parametrize("value", [[], [257], [-1], [True], ["3"], 5])
def test_allowed_ids_must_be_ids_of_the_model(value):
    with pytest.raises(Exception, match="allowed_token_ids"):
        params_of(allowed_token_ids=value)


def test_a_bad_word_is_banned_as_it_is_and_after_a_space():
    assert params_of(bad_words=["ab"]).bad_words == (tuple(byte_ids("ab")),), (
        "the space is a token of its own"
    )
    text = byte_tokenizer([("Ġ", "a"), ("Ġa", "b"), ("a", "b")])
    sequences = read_bad_words(["ab", " ab", "x"], text)
    assert [text.decode(sequence) for sequence in sequences] == ["ab", " ab", "x"]


@pytest.mark.parametrize("value", [[""], ["x" * 257], ["x"] * 129, [5], "x", [None]])
def test_bad_words_are_bounded(value):
    with pytest.raises((ApiError, ValueError), match="bad_words"):
        params_of(bad_words=value)


def test_none_of_either_is_nothing():
    assert params_of(bad_words=[], allowed_token_ids=None).bad_words == ()
