"""The Hermes dialect: calls and content, however the text is cut, and nothing lost."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mambad.server.tool_parsers.hermes import HermesParser

FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<tool", "</", '{"name": "f", "arguments": ', "{", "}", '"', "{}", "[1]",
    '{"arguments": {"a": 1}, "name": "g"}', '{"name":"h","parameters":{}}', '{"a": "</tool_call>"}', '\\"',
    " ", "\n", "x", "é", "<", "null", ",", '"id": 3', '{"name": "f", "arguments": "{}"}', "\\",
]  # fmt: skip
NO_NAME = '<tool_call>{"name": 3, "arguments": {}}</tool_call>'
NO_OBJECT = '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'
WHOLE = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
texts = st.lists(st.sampled_from(FRAGMENTS) | st.just(WHOLE), max_size=12).map("".join)


def parse(text, cuts=()):
    """Return content and calls of a text that arrives in parts."""
    parser, pieces = HermesParser(), []
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, end in pairwise(bounds):
        pieces += parser.feed(text[start:end])
    pieces += parser.finish()
    content, calls = "", []
    for piece in pieces:
        if piece.kind == "content":
            content += piece.text
        elif piece.kind == "call":
            calls.append([piece.text, ""])
        else:
            calls[-1][1] += piece.text
    return content, calls


def call(name="f", arguments="{}"):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@given(texts, st.lists(st.integers(0, 400), max_size=8))
def test_what_comes_out_does_not_depend_on_the_cuts(text, cuts):
    whole = parse(text)
    assert parse(text, cuts) == whole == parse(text, range(len(text)))


@given(texts)
def test_nothing_but_white_space_tags_and_the_frame_of_calls_is_lost(text):
    content, calls = parse(text)
    if not calls:
        assert content == text
    left = sorted(
        char for char in content + "".join(name + arguments for name, arguments in calls) if char in "xé1"
    )
    assert left == sorted(char for char in text if char in "xé1")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("Hi there", "Hi there", []),
        ("  Hi \n", "  Hi \n", []),
        (call(), "", [["f", "{}"]]),
        (f"Let me see.\n\n{call()}\n", "Let me see.", [["f", "{}"]]),
        (call() + "\n" + call("g", '{"b": [1, {}]}'), "", [["f", "{}"], ["g", '{"b": [1, {}]}']]),
        (f"a {call()} b {call()} c", "a b c", [["f", "{}"]] * 2),
        (f"a{call()}\n\n{call()}\n\nb", "a\nb", [["f", "{}"]] * 2),
        (f"\n{call()}\nb\n", "b\n", [["f", "{}"]]),
        (call("f", '{"t": "a </tool_call> \\" } {"}'), "", [["f", '{"t": "a </tool_call> \\" } {"}']]),
        (call("f", '{ "a" :\n1 }'), "", [["f", '{ "a" :\n1 }']]),
        ('<tool_call>{"arguments": {"é": 1}, "name": "f"}</tool_call>', "", [["f", '{"é": 1}']]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [["f", '{"a": 1}']]),
        ('<tool_call>{"name": "f"}</tool_call>', "", [["f", "{}"]]),
        ('<tool_call>{"name": "f", "arguments": {}, "id": "x"}</tool_call>', "", [["f", "{}"]]),
        ('<tool_call>{"name": "a\\"b", "arguments": {}}</tool_call>', "", [['a"b', "{}"]]),
        # closing tags that are missing
        ('<tool_call>{"name": "f", "arguments": {}}', "", [["f", "{}"]]),
        ('<tool_call>{"arguments": {}, "name": "f"}', "", [["f", "{}"]]),
        (f'<tool_call>{{"name": "g", "arguments": {{}}}}\n{call()}', "", [["g", "{}"], ["f", "{}"]]),
        # cut short
        ('<tool_call>{"name": "f", "arguments": {"a": "tex', "", [["f", '{"a": "tex']]),
        ('a <tool_call>{"name": "f", "argu', 'a <tool_call>{"name": "f", "argu', []),
        ("a <tool_ca", "a <tool_ca", []),
        # no calls after all
        ("<tool_call>what?</tool_call>", "<tool_call>what?</tool_call>", []),
        ("a\n<tool_call>[1]</tool_call>\nb", "a\n<tool_call>[1]</tool_call>\nb", []),
        (NO_NAME, NO_NAME, []),
        (NO_OBJECT, NO_OBJECT, []),
        (f"<tool_call>oops{call()}", "<tool_call>oops", [["f", "{}"]]),
        (f"<tool_call>{'[' * 5000}</tool_call>", f"<tool_call>{'[' * 5000}</tool_call>", []),
        ('<tool_call>{"name": "f", "arguments": {}} and more</tool_call>', "} and more", [["f", "{}"]]),
        # broken within the arguments: they are passed on as they are
        ('<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>', "", [["f", '{"a": }']]),
        ('<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>', "", [["f", '{"a": 1']]),
    ],
)  # fmt: skip
def test_these_texts_are_read_so(text, content, calls):
    assert parse(text) == (content, calls)


def test_arguments_arrive_as_the_model_writes_them():
    parser = HermesParser()
    text = call("f", '{"city": "Oslo"}')
    steps = [(end, parser.feed(text[end - 1 : end])) for end in range(1, len(text) + 1)]
    begin = next(end for end, pieces in steps if pieces and pieces[0].kind == "call")
    assert text[:begin].endswith('"arguments": {')
    told = [piece.text for _, pieces in steps for piece in pieces if piece.kind == "arguments"]
    assert "".join(told) == '{"city": "Oslo"}'
    assert len(told) == len('{"city": "Oslo"}')


def test_a_name_that_comes_late_is_waited_for():
    name = "n" * 2000
    text = call(name, '{"a": 1}')
    assert parse(text) == parse(text, range(0, 4000, 7)) == ("", [[name, '{"a": 1}']])
    assert json.loads(parse(text)[1][0][1]) == {"a": 1}
