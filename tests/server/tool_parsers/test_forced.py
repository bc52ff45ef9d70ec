"""Forced calls: lists of calls, and the arguments of one function."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mambad.server.tool_parsers.base import Piece, merged
from mambad.server.tool_parsers.forced import ListParser, NamedParser


def parse(parser, text, cuts=()):
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [piece for start, end in pairwise(bounds) for piece in parser.feed(text[start:end])]
    return merged(pieces + parser.finish())


TWO = '[{"name": "f", "arguments": {"a": "]}"}},\n {"name":"g","arguments":{"b":[{}]}}]'
READ = [
    Piece("call", "f"),
    Piece("arguments", '{"a": "]}"}'),
    Piece("call", "g"),
    Piece("arguments", '{"b":[{}]}'),
]


@given(st.lists(st.integers(0, 200), max_size=6), st.integers(0, len(TWO)))
def test_a_list_of_calls_is_read_however_it_is_cut(cuts, length):
    text = TWO[:length]
    assert (
        parse(ListParser(), text, cuts)
        == parse(ListParser(), text)
        == parse(ListParser(), text, range(length))
    )


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (TWO, READ),
        (f" {TWO}\n", READ),
        ("[]", []),
        ("", []),
        (TWO[:40], [*READ[:2]]),
        (TWO[:60], [*READ[:2], Piece("content", '{"name":"g","argu')]),
        (TWO[:-5], [*READ[:3], Piece("arguments", '{"b":[{')]),
        ("I won't", [Piece("content", "I won't")]),
    ],
)
def test_what_was_cut_short_comes_out_as_far_as_it_goes(text, pieces):
    assert parse(ListParser(), text) == pieces


def test_all_text_is_the_arguments_of_a_named_function():
    assert parse(NamedParser("f"), '{"a": 1}', [3, 5]) == [Piece("call", "f"), Piece("arguments", '{"a": 1}')]
    assert parse(NamedParser("f"), "") == []
