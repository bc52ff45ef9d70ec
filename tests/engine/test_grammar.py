"""Grammars: the mask is exactly what the grammar accepts, white space and cost are bounded, ends are seen."""

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mambad.engine import grammar as grammar_module
from mambad.engine.grammar import FREE_CPU_S, GrammarError, RequestGrammar, Vocabulary
from mambad.engine.grammar_compiler import MAX_KEPT, GrammarCompiler
from mambad.engine.grammar_spec import NO_SPACE, Grammar

DEMO = Path(__file__).resolve().parents[2] / "configs" / "demo"
EOS = 256
BYTES = Vocabulary.of_bytes()
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def json_grammar(schema: Any, **options: str) -> Grammar:
    return Grammar(kind="json", text=json.dumps(schema), **options)


def begun(grammar: Grammar, ignore_eos: bool = False, vocabulary: Vocabulary = BYTES) -> RequestGrammar:
    request = RequestGrammar(ignore_eos)
    request.begin(vocabulary, vocabulary.compile(grammar))
    return request


def after(grammar: Grammar, text: str, **options: Any) -> RequestGrammar:
    request = begun(grammar, **options)
    for byte in text.encode():
        assert request.allowed(257)[byte], f"{bytes([byte])!r} in {text!r}"
        request.consume(byte)
    assert request.error is None
    return request


def next_bytes(request: RequestGrammar) -> set[str]:
    """Characters that may come next; `end` for the end of the text."""
    return {"end" if token == EOS else chr(token) for token in np.flatnonzero(request.allowed(257))}


def is_matched(grammar: Grammar, text: str) -> bool:
    """Whether the grammar allows this text and an end after it."""
    request = begun(grammar)
    for byte in text.encode():
        if request.is_complete or not request.allowed(257)[byte]:
            return False
        request.consume(byte)
    return request.is_accepting


def test_a_mask_holds_exactly_the_tokens_that_can_follow() -> None:
    vocabulary = Vocabulary.from_folder(DEMO, [0])
    for text, grammar in (
        ("", json_grammar(PERSON)),
        ('{"name": "', json_grammar(PERSON)),
        ("12", Grammar(kind="regex", text="[0-9]{2,6}[a-z]*")),
    ):
        ids = vocabulary.tokenizer.tokenize_str(text)
        request = begun(grammar, vocabulary=vocabulary)
        for token_id in ids:
            request.consume(token_id)
        matcher = vocabulary.compile(grammar)
        assert matcher.consume_tokens(ids)
        allowed = request.allowed(2050)
        assert not allowed[2048:].any(), "ids without a token are never allowed"
        for token_id in range(2048):
            assert bool(allowed[token_id]) == (matcher.validate_tokens([token_id]) == 1), token_id


def test_an_end_is_allowed_only_where_the_grammar_can_end() -> None:
    word = Grammar(kind="regex", text="ab(cd)?")
    assert next_bytes(after(word, "a")) == {"b"}
    assert next_bytes(after(word, "ab")) == {"c", "end"}
    assert not after(word, "ab").is_complete
    assert after(word, "abcd").is_complete
    assert next_bytes(after(word, "abcd")) == {"end"}


def test_ignoring_ends_allows_one_only_where_nothing_else_is() -> None:
    word = Grammar(kind="regex", text="ab(cd)?")
    assert next_bytes(after(word, "ab", ignore_eos=True)) == {"c"}
    assert next_bytes(begun(Grammar(kind="regex", text=""), ignore_eos=True)) == {"end"}


def test_json_ends_with_its_last_brace() -> None:
    for schema, text in (
        (PERSON, '{"name": "x", "age": 3}'),
        ({"type": "object"}, '{"a": [1, {"b": null}]}'),
    ):
        assert after(json_grammar(schema), text).is_complete
        assert not after(json_grammar(schema), text[:-1]).is_complete


def test_properties_come_in_the_order_of_the_schema() -> None:
    assert next_bytes(after(json_grammar(PERSON), '{"')) == {"n"}


def test_white_space_in_json_never_goes_on() -> None:
    grammar = json_grammar({"type": "object"})
    assert is_matched(grammar, '{\n    "a": [\n        1,\n        2\n    ]\n}')
    assert not is_matched(grammar, '{  "a": 1}')
    for space in (" ", "\n", "\t", "\r"):
        request, count = begun(grammar), 0
        request.consume(ord("{"))
        while request.allowed(257)[ord(space)]:
            request.consume(ord(space))
            count += 1
            assert count <= 24
    request, count = begun(grammar), 0
    for char in "{\n":
        request.consume(ord(char))
    while request.allowed(257)[ord(" ")]:
        request.consume(ord(" "))
        count += 1
    assert count == 20


def test_white_space_can_be_chosen_or_left_out() -> None:
    none, dashes = json_grammar(PERSON, space=NO_SPACE), json_grammar(PERSON, space="-{1,2}")
    assert is_matched(none, '{"name":"x","age":3}')
    assert not is_matched(none, '{"name": "x","age":3}')
    assert is_matched(dashes, '{--"name":-"x","age":3}')
    assert not is_matched(dashes, '{---"name":"x","age":3}')


def test_a_schema_can_not_set_options_of_the_library() -> None:
    lenient = {**PERSON, "not": {}, "x-guidance": {"lenient": True}}
    with pytest.raises(GrammarError, match="not"):
        BYTES.compile(json_grammar(lenient))


def test_digits_of_a_regular_expression_are_ascii() -> None:
    digit = Grammar(kind="regex", text=r"\d")
    assert next_bytes(begun(digit)) == set("0123456789")
    assert is_matched(Grammar(kind="regex", text=r"\w+/\w+"), "é/b")


def test_lark_and_gbnf_are_understood() -> None:
    lark = Grammar(kind="lark", text='start: "x" NUMBER\nNUMBER: /[0-9]+/')
    gbnf = Grammar(kind="gbnf", text='root ::= "x" number\nnumber ::= [0-9]+')
    for grammar in (lark, gbnf):
        assert is_matched(grammar, "x12")
        assert not is_matched(grammar, "x")


DOUBLING = "start: a0\n" + "".join(f"a{i}: a{i + 1} a{i + 1}\n" for i in range(30)) + 'a30: "x"'

BAD = [
    Grammar(kind="regex", text="("),
    Grammar(kind="regex", text=r"(a)\1"),
    Grammar(kind="regex", text="(?=a)b"),
    Grammar(kind="regex", text="(" * 1000 + "a" + ")" * 1000),
    Grammar(kind="regex", text="((a{1,100}){1,100}){1,100}"),
    json_grammar({"$ref": "#"}),
    json_grammar({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
    json_grammar({"$ref": "#/$defs/none"}),
    json_grammar({"$ref": "http://127.0.0.1:9/x.json"}),
    json_grammar({"type": "zzz"}),
    json_grammar({"type": "array", "uniqueItems": True}),
    json_grammar({"type": "integer", "minimum": 5, "maximum": 3}),
    json_grammar({"type": "string", "pattern": "(["}),
    json_grammar({"oneOf": [{"type": "object"}, {"type": "object", "required": ["a"]}]}),
    Grammar(kind="json", text="[" * 5000),
    Grammar(kind="json", text="true"),
    Grammar(kind="lark", text="start: start"),
    Grammar(kind="lark", text="start: none"),
    Grammar(kind="lark", text="][ %%"),
    Grammar(kind="lark", text="start: " + "(" * 5000 + '"a"' + ")" * 5000),
    Grammar(kind="lark", text='start: x{1000}\nx: y{1000}\ny: z{1000}\nz: "a"'),
    Grammar(kind="lark", text=DOUBLING),
    Grammar(kind="gbnf", text="root ::= " + "(" * 5000),
]


@pytest.mark.parametrize("grammar", BAD, ids=range(len(BAD)))
def test_what_can_not_be_served_is_refused_soon_and_in_few_words(grammar: Grammar) -> None:
    start_s = time.process_time()
    with pytest.raises(GrammarError) as caught:
        BYTES.try_out(grammar)
    assert time.process_time() - start_s < 1
    message = str(caught.value)
    assert 5 < len(message) <= 500
    assert "<state>" not in message


HARMLESS = [
    Grammar(kind="regex", text="(a+)+$"),
    Grammar(kind="regex", text="foo**"),
    Grammar(kind="regex", text="(x+x+)+y"),
    Grammar(kind="regex", text="a{1,1000000}"),
    json_grammar({"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}),
    json_grammar({"type": "string", "minLength": 10**5, "maxLength": 10**9}),
    Grammar(kind="regex", text="|".join(f"value-{index}" for index in range(4000))),
]


@pytest.mark.parametrize("grammar", HARMLESS, ids=range(len(HARMLESS)))
def test_what_only_looks_dangerous_is_served_at_once(grammar: Grammar) -> None:
    start_s = time.process_time()
    BYTES.try_out(grammar)
    assert time.process_time() - start_s < 1


def test_a_grammar_that_takes_too_long_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(grammar_module.time, "thread_time", lambda: now_s)
    request = begun(Grammar(kind="regex", text="[a-z]*"))
    assert request.allowed(257).any()
    assert request.error is None
    times = iter([0.0, FREE_CPU_S + 1])
    monkeypatch.setattr(grammar_module.time, "thread_time", lambda: next(times))
    request.consume(ord("a"))
    assert request.error_code == "grammar_too_complex"


def test_a_grammar_that_grows_beyond_its_limits_ends_its_request() -> None:
    request = begun(Grammar(kind="regex", text="((a{1,100}){1,100}){1,100}"))
    for _ in range(400):
        if request.error is None and request.allowed(257)[ord("a")]:
            request.consume(ord("a"))
    assert request.error_code == "grammar_too_complex"
    assert "<state>" not in str(request.error)


def wait_for(request: RequestGrammar) -> None:
    deadline_s = time.monotonic() + 5
    while not request.is_ready and request.error is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_a_known_grammar_is_ready_at_once_and_every_request_has_its_own_place_in_it() -> None:
    compiler = GrammarCompiler(BYTES)
    word = Grammar(kind="regex", text="ab")
    first = compiler.open(word)
    wait_for(first)
    first.consume(ord("a"))
    second = compiler.open(Grammar(kind="regex", text="ab", field="tools"))
    assert second.is_ready, "the field makes no difference"
    assert next_bytes(second) == {"a"}
    assert next_bytes(first) == {"b"}


def test_a_grammar_that_can_not_be_compiled_says_so_and_the_next_one_can() -> None:
    compiler = GrammarCompiler(BYTES)
    bad, good = compiler.open(Grammar(kind="regex", text="(")), compiler.open(Grammar(kind="regex", text="a"))
    for request in (bad, good):
        wait_for(request)
    assert bad.error_code == "invalid_grammar"
    assert not bad.is_ready
    assert good.is_ready


def test_only_the_newest_grammars_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compiler = GrammarCompiler(BYTES)
    original = BYTES.compile

    def counted(grammar: Grammar) -> Any:
        compiled.append(grammar.text)
        return original(grammar)

    monkeypatch.setattr(BYTES, "compile", counted)

    def ask(text: str) -> None:
        wait_for(compiler.open(Grammar(kind="regex", text=text)))

    for index in range(MAX_KEPT + 1):
        ask(f"a{index}")
    ask(f"a{MAX_KEPT}")
    assert len(compiled) == MAX_KEPT + 1
    ask("a0")
    assert len(compiled) == MAX_KEPT + 2


def test_without_a_tokenizer_every_grammar_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GrammarError, match=r"tokenizer\.json"):
        Vocabulary.from_folder(tmp_path, [0])
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(GrammarError):
        Vocabulary.from_folder(tmp_path, [0])
    refused = GrammarCompiler(None, "no tokenizer").open(Grammar(kind="regex", text="a"))
    assert refused.error_code == "invalid_grammar"


# ---- random schemas: what comes out of one is one of its values --------------------------------------

names = st.text("abcxyz", min_size=1, max_size=3)
leaves = st.one_of(
    st.just({"type": "null"}),
    st.just({"type": "boolean"}),
    st.builds(
        lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
        st.integers(-200, 200),
        st.integers(0, 300),
    ),
    st.builds(
        lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size},
        st.integers(0, 3),
        st.integers(0, 4),
    ),
    st.builds(lambda values: {"enum": values}, st.lists(st.integers(0, 99) | names, min_size=1, max_size=3)),
)


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name in required],
        "additionalProperties": False,
    }


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(_object, st.dictionaries(names, inner, max_size=3), st.lists(names)),
        st.builds(
            lambda items, low, size: {
                "type": "array",
                "items": items,
                "minItems": low,
                "maxItems": low + size,
            },
            inner,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=2)),
    )


def is_valid(value: Any, schema: dict[str, Any]) -> bool:
    if "anyOf" in schema:
        return any(is_valid(value, option) for option in schema["anyOf"])
    if "enum" in schema:
        return any(type(value) is type(one) and value == one for one in schema["enum"])
    kind = schema["type"]
    if kind == "object":
        properties = schema["properties"]
        return (
            isinstance(value, dict)
            and set(schema["required"]) <= set(value) <= set(properties)
            and all(is_valid(item, properties[name]) for name, item in value.items())
        )
    if kind == "array":
        is_sized = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
        return is_sized and all(is_valid(item, schema["items"]) for item in value)
    if kind == "integer":
        return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
    if kind == "string":
        return isinstance(value, str) and schema["minLength"] <= len(value) <= schema["maxLength"]
    return value is None if kind == "null" else type(value) is bool


@settings(max_examples=60, deadline=None)
@given(schema=st.recursive(leaves, _nested, max_leaves=6), seed=st.integers(0, 2**32))
def test_whatever_a_random_reader_of_the_mask_writes_is_a_value_of_the_schema(schema: Any, seed: int) -> None:
    request, rng, text = begun(json_grammar(schema)), random.Random(seed), bytearray()
    while not request.is_complete and len(text) < 2000:
        token = int(rng.choice(np.flatnonzero(request.allowed(257))))
        if token == EOS:
            break
        request.consume(token)
        assert request.error is None
        text.append(token)
    assert request.is_accepting, bytes(text)
    assert is_valid(json.loads(text), schema), (bytes(text), schema)
