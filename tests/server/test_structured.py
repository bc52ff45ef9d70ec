"""What an answer must look like: read from the request, tried out before the answer begins, or refused."""

import asyncio
import json
import signal
from typing import Any

import orjson
import pytest
from pydantic import ValidationError
from toy_server import FakeEngine, byte_ids, byte_tokenizer, run_server, says, toy_info

from mambad.engine.grammar_spec import FLEXIBLE_SPACE, NO_SPACE, Grammar
from mambad.engine.outputs import RequestOutput
from mambad.engine.stream import RequestStream
from mambad.server import grammar_check
from mambad.server.choice import ChoiceText, PromptText, TextOptions
from mambad.server.errors import ApiError, failure_of
from mambad.server.grammar_check import MAX_VERDICTS, GrammarChecker
from mambad.server.schemas.common import REPLACEMENTS
from mambad.server.schemas.structured import ResponseFormat, StructuredOutputs
from mambad.server.structured import MAX_GRAMMAR_BYTES, read_constraint, schema_constraint

PATH = "/v1/completions"
OBJECT = {"type": "object"}
ENDLESS = {"allOf": [{"type": "string", "pattern": f"[ab]*a[ab]{{{size}}}"} for size in range(30)]}


def of_format(**wire: Any) -> Grammar | None:
    return read_constraint(ResponseFormat.model_validate(wire), None)


def of_outputs(**wire: Any) -> Grammar | None:
    return read_constraint(None, StructuredOutputs.model_validate(wire))


def refusal(**wire: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        of_outputs(**wire)
    assert caught.value.status == 400
    return caught.value


def test_text_asks_for_nothing() -> None:
    assert read_constraint(None, None) is None
    assert of_format(type="text") is None


def test_json_object_and_json_schema_are_schemas() -> None:
    found = of_format(type="json_object")
    assert found == Grammar(kind="json", text='{"type":"object"}', field="response_format")
    schema = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "null"}}}
    found = of_format(type="json_schema", json_schema={"name": "x", "schema": schema, "strict": True})
    assert found is not None
    assert (found.kind, found.field) == ("json", "response_format.json_schema.schema")
    assert orjson.loads(found.text) == schema
    assert found.text.index('"z"') < found.text.index('"a"')


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        ({"json": OBJECT}, ("json", '{"type":"object"}', FLEXIBLE_SPACE)),
        ({"json": '{"type": "object"}'}, ("json", '{"type":"object"}', FLEXIBLE_SPACE)),
        ({"json_object": True}, ("json", '{"type":"object"}', FLEXIBLE_SPACE)),
        ({"json": OBJECT, "disable_any_whitespace": True}, ("json", '{"type":"object"}', NO_SPACE)),
        ({"json": OBJECT, "whitespace_pattern": " ?"}, ("json", '{"type":"object"}', " ?")),
        ({"json": OBJECT, "disable_fallback": True}, ("json", '{"type":"object"}', FLEXIBLE_SPACE)),
        ({"json": OBJECT, "json_object": False}, ("json", '{"type":"object"}', FLEXIBLE_SPACE)),
        ({"regex": "a+"}, ("regex", "a+", FLEXIBLE_SPACE)),
        ({"choice": ["a", "b.", "ö"]}, ("regex", "a|b\\x{2e}|\\x{f6}", FLEXIBLE_SPACE)),
        ({"grammar": 'start: "::="'}, ("lark", 'start: "::="', FLEXIBLE_SPACE)),
        ({"grammar": '\n root ::= "a"'}, ("gbnf", '\n root ::= "a"', FLEXIBLE_SPACE)),
    ],
)
def test_each_of_vllm_s_names_becomes_a_grammar(wire: Any, expected: Any) -> None:
    found = of_outputs(**wire)
    assert found is not None
    assert found.key == expected
    assert found.field == f"structured_outputs.{next(iter(wire))}"


@pytest.mark.parametrize(
    ("wire", "param"),
    [
        ({}, "structured_outputs"),
        ({"json_object": False}, "structured_outputs"),
        ({"json": OBJECT, "regex": "a"}, "structured_outputs"),
        ({"json": "no JSON"}, "structured_outputs.json"),
        ({"json": "[1]"}, "structured_outputs.json"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"choice": ["a", ""]}, "structured_outputs.choice"),
        ({"choice": ["x" * MAX_GRAMMAR_BYTES]}, "structured_outputs.choice"),
        ({"choice": ["x" * MAX_GRAMMAR_BYTES, "y"]}, "structured_outputs.choice"),
        ({"regex": "x" * (MAX_GRAMMAR_BYTES + 1)}, "structured_outputs.regex"),
        ({"grammar": "x" * (MAX_GRAMMAR_BYTES + 1)}, "structured_outputs.grammar"),
        ({"json": {"enum": ["x" * MAX_GRAMMAR_BYTES]}}, "structured_outputs.json"),
        ({"json": OBJECT, "structural_tag": {"a": 1}}, "structured_outputs.structural_tag"),
        (
            {"json": OBJECT, "disable_additional_properties": True},
            "structured_outputs.disable_additional_properties",
        ),
        ({"regex": "a", "whitespace_pattern": " "}, "structured_outputs"),
        (
            {"json": OBJECT, "whitespace_pattern": " ", "disable_any_whitespace": True},
            "structured_outputs.whitespace_pattern",
        ),
    ],
)
def test_what_is_not_one_constraint_is_refused_by_name(wire: Any, param: str) -> None:
    error = refusal(**wire)
    assert error.param == param
    assert len(error.message) < 300


def test_a_schema_may_be_deep_but_not_for_ever() -> None:
    def nested(depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string"}
        for _ in range(depth - 1):
            schema = {"items": schema}
        return schema

    assert schema_constraint(nested(100), "tools").field == "tools"
    for depth in (101, 5000):
        with pytest.raises(ApiError, match="deep"):
            schema_constraint(nested(depth), "tools")


def test_an_unknown_field_of_a_constraint_is_refused() -> None:
    for wire in ({"json": OBJECT, "max_depth": 3}, {"lark": "x"}):
        with pytest.raises(ValidationError):
            StructuredOutputs.model_validate(wire)
    with pytest.raises(ValidationError):
        ResponseFormat.model_validate({"type": "json_object", "schema": OBJECT})


def test_two_places_for_a_constraint_are_refused() -> None:
    outputs = StructuredOutputs.model_validate({"regex": "a"})
    with pytest.raises(ApiError):
        read_constraint(ResponseFormat(type="json_object"), outputs)
    assert read_constraint(ResponseFormat(type="text"), outputs) is not None


def test_a_discriminated_one_of_means_any_of_and_nothing_else_is_touched() -> None:
    union = {"discriminator": {"propertyName": "kind"}, "oneOf": [{"type": "null"}]}
    assert orjson.loads(schema_constraint(union, "x").text) == {
        "discriminator": {"propertyName": "kind"},
        "anyOf": [{"type": "null"}],
    }
    for schema in (
        {"oneOf": [{"type": "null"}]},
        {"type": "object", "properties": {"oneOf": {"type": "null"}, "discriminator": {"type": "null"}}},
    ):
        assert orjson.loads(schema_constraint(schema, "x").text) == schema


# ---- the trial ---------------------------------------------------------------------------------------


def verdicts(checker: GrammarChecker, *grammars: Grammar) -> list[str | None]:
    async def ask(grammar: Grammar) -> str | None:
        try:
            await checker.check(grammar)
        except ApiError as error:
            return f"{error.status} {error.param}: {error.message}"
        return None

    async def ask_all() -> list[str | None]:
        return await asyncio.gather(*map(ask, grammars))

    return asyncio.run(ask_all())


def test_a_grammar_without_end_is_given_up_and_the_next_ones_are_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endless = Grammar(kind="json", text=json.dumps(ENDLESS))
    word, bad = Grammar(kind="regex", text="[a-z]+"), Grammar(kind="regex", text="(")
    checker = GrammarChecker()
    first, second, third = verdicts(checker, endless, word, bad)
    assert first is not None
    assert first.startswith("400 response_format: ")
    assert "more than 1 s" in first
    assert second is None
    assert third is not None
    assert "regex" in third
    monkeypatch.setattr(checker._trial, "ask", lambda grammar: pytest.fail("verdicts are remembered"))
    assert verdicts(checker, endless, word, bad) == [first, second, third]


def test_a_process_that_has_gone_is_replaced() -> None:
    checker = GrammarChecker()
    assert verdicts(checker, Grammar(kind="regex", text="a")) == [None]
    process = checker._trial._process
    assert process is not None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert verdicts(checker, Grammar(kind="regex", text="b")) == [None]
    assert checker._trial._process is not process


def test_a_trial_that_got_no_processor_in_time_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    checker, grammar = GrammarChecker(), Grammar(kind="regex", text="b")
    assert verdicts(checker, Grammar(kind="regex", text="a")) == [None]
    process = checker._trial._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr(grammar_check, "MAX_WALL_S", 0.2)
        (first,) = verdicts(checker, grammar)
    assert first is not None
    assert first.startswith("429 ")
    assert verdicts(checker, grammar) == [None]


def test_the_process_ends_with_its_checker() -> None:
    checker = GrammarChecker()
    verdicts(checker, Grammar(kind="regex", text="a"))
    process = checker._trial._process
    assert process is not None
    del checker
    assert process.wait(5) != 0


def test_the_event_loop_goes_on_while_a_grammar_is_tried_out() -> None:
    async def count_turns() -> int:
        checker, num_turns = GrammarChecker(), 0
        task = asyncio.create_task(checker.check(Grammar(kind="json", text=json.dumps(ENDLESS))))
        while not task.done():
            await asyncio.sleep(0.01)
            num_turns += 1
        assert isinstance(task.exception(), ApiError)
        return num_turns

    assert asyncio.run(count_turns()) > 10, "it takes a second of processor time"


def test_too_many_grammars_at_once_are_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_check, "MAX_WAITING", 2)

    async def statuses() -> list[int]:
        checker = GrammarChecker()
        asked = [checker.check(Grammar(kind="regex", text=f"a{index}")) for index in range(4)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        return [result.status if isinstance(result, ApiError) else 200 for result in results]

    assert asyncio.run(statuses()) == [200, 200, 429, 429]


def test_verdicts_are_bounded() -> None:
    checker = GrammarChecker()
    for index in range(MAX_VERDICTS + 10):
        checker._remember(Grammar(kind="regex", text=f"a{index}"), "")
    assert len(checker._verdicts) == MAX_VERDICTS
    for index in range(200):
        checker._remember(Grammar(kind="regex", text=f"{index}".ljust(MAX_GRAMMAR_BYTES)), "")
    assert sum(len(grammar.text) for grammar in checker._verdicts) <= grammar_check.MAX_VERDICT_CHARS


# ---- through the server ------------------------------------------------------------------------------


def test_a_good_grammar_reaches_the_engine_with_every_choice_and_a_bad_one_does_not() -> None:
    engine = FakeEngine(says("{}"))
    with run_server(engine) as server, server.client() as client:
        body = {"prompt": "p", "n": 2, "response_format": {"type": "json_object"}}
        assert client.post(PATH, json=body).status_code == 200
        wanted = Grammar(kind="json", text='{"type":"object"}')
        assert [submission.params.grammar for submission in engine.submissions] == [wanted, wanted]
        engine.submissions.clear()
        for stream in (False, True):
            bad = {"prompt": "p", "stream": stream, "structured_outputs": {"regex": "("}}
            answer = client.post(PATH, json=bad)
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert (error["param"], error["code"]) == ("structured_outputs.regex", "invalid_grammar")
        assert engine.submissions == []


def test_chat_takes_the_same_fields() -> None:
    engine = FakeEngine(says("7"))
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with run_server(engine, template=template) as server, server.client() as client:
        body = {"messages": [{"role": "user", "content": "p"}], "structured_outputs": {"regex": "[0-9]"}}
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        grammar = engine.submissions[0].params.grammar
        assert grammar is not None
        assert grammar.text == "[0-9]"


def test_a_model_that_can_not_be_constrained_says_so() -> None:
    engine = FakeEngine(info=toy_info(has_grammars=False))
    with run_server(engine) as server, server.client() as client:
        body = {"prompt": "p", "response_format": {"type": "json_object"}}
        error = client.post(PATH, json=body).json()["error"]
        assert (error["param"], error["code"]) == ("response_format", "unsupported_parameter")
        assert client.post(PATH, json={"prompt": "p"}).status_code == 200


def test_names_of_other_servers_are_refused_with_the_name_that_is_meant() -> None:
    with run_server() as server, server.client() as client:
        for name, instead in REPLACEMENTS.items():
            answer = client.post(PATH, json={"prompt": "p", name: "x"})
            assert answer.status_code == 400
            assert f"`{instead}`" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("ends_in_text", "expected"), [(True, "a}"), (False, "a")])
def test_the_last_token_is_shown_where_a_grammar_was_completed(ends_in_text: bool, expected: str) -> None:
    async def text(is_slow: bool) -> str:
        stream = RequestStream("r", lambda reason: None, lambda num_kept: None)
        choice, shown = ChoiceText(byte_tokenizer(), TextOptions(), PromptText([1])), ""
        for output in (
            RequestOutput("r", tuple(byte_ids("a"))),
            RequestOutput("r", tuple(byte_ids("}")), finish_reason="stop", ends_in_text=ends_in_text),
        ):
            stream.deliver(output)
            if not is_slow:
                shown += choice.feed(await anext(stream)).text
        return shown + choice.feed(await anext(stream)).text if is_slow else shown

    assert [asyncio.run(text(is_slow)) for is_slow in (False, True)] == [expected, expected]


def test_an_answer_that_a_grammar_led_nowhere_is_not_to_be_retried() -> None:
    failure = failure_of(_output("grammar_dead_end"))
    assert failure is not None
    assert (failure.status, failure.code) == (500, "grammar_dead_end")
    assert failure.headers["x-should-retry"] == "false"
    other = failure_of(_output("engine_error"))
    assert other is not None
    assert "x-should-retry" not in other.headers


def _output(code: str) -> RequestOutput:
    return RequestOutput("x", finish_reason="error", error="no token", error_code=code)
