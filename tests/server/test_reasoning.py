"""Thoughts and messages: split, however the text is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mambad.server.reasoning import ThoughtSplitter, has_thoughts, is_thought_open
from mambad.server.tool_parsers.base import merged

texts = st.lists(
    st.sampled_from(["<think>", "</think>", "<th", "</", " ", "\n", "x", "é", "<", ">"]), max_size=10
).map("".join)


def split(text, is_open=False, cuts=()):
    splitter, pieces = ThoughtSplitter(is_open), []
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, end in pairwise(bounds):
        pieces += splitter.feed(text[start:end])
    pieces = merged(pieces + splitter.finish())
    found = {
        kind: [piece.text for piece in pieces if piece.kind == kind] for kind in ("reasoning", "content")
    }
    assert all(len(parts) <= 1 for parts in found.values())
    return ("".join(found["reasoning"]), "".join(found["content"])), splitter.end


@given(texts, st.booleans(), st.lists(st.integers(0, 100), max_size=6))
def test_the_split_does_not_depend_on_the_cuts(text, is_open, cuts):
    assert split(text, is_open, cuts) == split(text, is_open) == split(text, is_open, range(len(text)))


@pytest.mark.parametrize(
    ("text", "is_open", "parts"),
    [
        ("hello", False, ("", "hello")),
        (" hello ", False, ("", " hello ")),
        ("<think>\nhm, well\n</think>\n\nHello \n", False, ("hm, well", "Hello \n")),
        ("\n<think>a</think>b</think>", False, ("a", "b</think>")),
        ("hm\n</think>\n\nHello", True, ("hm", "Hello")),
        ("<think>hm</think>Hello", True, ("hm", "Hello")),
        ("</think>Hello", True, ("", "Hello")),
        ("<think></think>", False, ("", "")),
        ("<think>still at it ", False, ("still at it", "")),
        ("still at it </thi", True, ("still at it </thi", "")),
        ("<thi", False, ("", "<thi")),
        ("first <think>no</think>", False, ("", "first <think>no</think>")),
        ("", True, ("", "")),
    ],
)
def test_these_texts_are_split_so(text, is_open, parts):
    assert split(text, is_open)[0] == parts


def test_the_end_of_a_thought_is_counted_in_characters():
    assert split("<think>ab</think>cd")[1] == len("<think>ab</think>")
    assert split("ab</think>cd", True)[1] == len("ab</think>")
    assert split("abc")[1] == 0
    assert split("<think>abc")[1] is None


def test_a_prompt_may_have_opened_the_thought():
    assert is_thought_open("<|assistant|><think>\n")
    assert not is_thought_open("<|assistant|><think>\n\n</think>\n\n")
    assert not is_thought_open("say <think> please")
    assert is_thought_open("…<think> so far", "<think> so far")
    assert not is_thought_open("…<think> so</think> far", "<think> so</think> far")


def test_what_is_parsed_is_configured_or_asked_of_the_template():
    assert [has_thoughts(mode, "…</think>…") for mode in ("auto", "think", "none")] == [True, True, False]
    assert [has_thoughts(mode, "…") for mode in ("auto", "think", "none")] == [False, True, False]
