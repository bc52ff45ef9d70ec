"""Calls of tools and thoughts in `/v1/chat/completions`, over real HTTP."""

import json

import pytest
from toy_chat import (
    NAMED,
    OTHER_TOOL,
    PATH,
    PLAIN_TEMPLATE,
    TEMPLATE,
    TOOL,
    USER,
    masked,
    post,
    prompt_of,
    refused,
    saying,
)
from toy_server import EOS_ID, FakeEngine, byte_tokenizer, run_server, toy_info

CALL = '<tool_call>\n{"name": "f", "arguments": {"a"}}\n</tool_call>'


@pytest.fixture(scope="module")
def server():
    with run_server(template=TEMPLATE) as running, running.client() as client:
        running.http = client
        yield running


def test_a_streamed_call_has_these_bytes():
    with saying(CALL) as server, server.client() as client:
        answer = client.post(PATH, json={"messages": [USER], "tools": [TOOL], "stream": True})
    head = '"id":"chatcmpl-ID","object":"chat.completion.chunk","created":1,"model":"toy"'

    def chunk(delta):
        choice = f'{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":null}}'
        return f'data: {{{head},"choices":[{choice}]}}\n\n'

    def part(text):
        return chunk(f'{{"tool_calls":[{{"index":0,"function":{{"arguments":"{text}"}}}}]}}')

    begin = '"id":"call_ID","type":"function","function":{"name":"f","arguments":""}'
    text = masked(answer.text)
    assert text.startswith(
        chunk('{"role":"assistant","content":""}')
        + chunk(f'{{"tool_calls":[{{"index":0,{begin}}}]}}')
        + "".join(map(part, ("{", '\\"', "a", '\\"', "}")))
    )
    assert '"delta":{},"logprobs":null,"finish_reason":"tool_calls"}]' in text.splitlines()[-4]


def test_tools_are_shown_to_the_model_unless_it_may_call_none(server):
    assert json.dumps([TOOL]) in prompt_of(server, tools=[TOOL])
    assert prompt_of(server, tools=[TOOL], tool_choice="none") == "<user>hi<bot>"
    allowed = {"mode": "auto", "tools": [NAMED]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    text = prompt_of(server, tools=[OTHER_TOOL, TOOL], tool_choice=choice)
    assert json.dumps([TOOL]) in text


def test_a_thought_is_told_apart_from_the_message():
    with saying("<think>\nhm\n</think>\n\nHello") as server, server.client() as server.http:
        body = post(server)
        (choice,) = body["choices"]
        assert choice["message"] == {
            "role": "assistant", "content": "Hello", "refusal": None, "reasoning_content": "hm",
        }  # fmt: skip
        assert body["usage"]["completion_tokens_details"] == {
            "reasoning_tokens": len("<think>\nhm\n</think>")
        }
        assert "reasoning_content" not in post(server, include_reasoning=False)["choices"][0]["message"]
        assert post(server, max_tokens=9)["choices"][0]["message"]["content"] is None
    with saying("a</think>b") as server, server.client() as server.http:
        (choice,) = post(server, chat_template_kwargs={"enable_thinking": True})["choices"]
        assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("a", "b")
        assert post(server)["choices"][0]["message"]["content"] == "a</think>b"
    with saying("<think>a</think>b", reasoning_parser="none") as server, server.client() as server.http:
        assert post(server)["choices"][0]["message"]["content"] == "<think>a</think>b"


def test_tags_that_are_special_tokens_are_seen_all_the_same():
    text = byte_tokenizer()
    tags = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    text = type(text)(text._tokenizer, eos_token=text.eos_token)
    text._tokenizer.add_special_tokens(tags)
    text = type(text)(text._tokenizer, eos_token=text.eos_token)
    words = '<think>hm</think><tool_call>{"name": "f", "arguments": {}}</tool_call>'
    ids = text.encode(words, False)
    assert len(ids) < len(words) - 30
    engine = FakeEngine(lambda submission: [*ids, EOS_ID], info=toy_info(vocab_size=261, max_model_len=900))
    with run_server(engine, text, template=TEMPLATE) as server, server.client() as server.http:
        message = post(server, tools=[TOOL])["choices"][0]["message"]
        assert (message["reasoning_content"], message["tool_calls"][0]["function"]["name"]) == ("hm", "f")
        assert post(server, tools=[TOOL])["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4


def test_calls_come_as_calls_and_end_the_answer_as_such():
    two = f'Sure.\n{CALL}\n<tool_call>{{"name": "g", "arguments": {{}}}}</tool_call>'
    with saying(two) as server, server.client() as server.http:
        (choice,) = post(server, tools=[TOOL, OTHER_TOOL])["choices"]
        calls = [call["function"] for call in choice["message"]["tool_calls"]]
        assert calls == [{"name": "f", "arguments": '{"a"}'}, {"name": "g", "arguments": "{}"}]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Sure.", "tool_calls")
        first = post(server, tools=[TOOL, OTHER_TOOL], parallel_tool_calls=False)["choices"][0]
        assert [call["function"] for call in first["message"]["tool_calls"]] == calls[:1]
        assert post(server, tools=[TOOL], max_tokens=60)["choices"][0]["finish_reason"] == "length"
        plain = post(server, tools=[TOOL], tool_choice="none")["choices"][0]
        assert (plain["message"]["content"], plain["finish_reason"]) == (two, "stop")


def test_a_forced_call_is_read_from_json_alone():
    with saying('[{"name": "f", "arguments": {"a": 1}}]') as server, server.client() as server.http:
        (choice,) = post(server, tools=[TOOL], tool_choice="required")["choices"]
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
        thinking = {"chat_template_kwargs": {"enable_thinking": True}, "tools": [TOOL]}
        message = post(server, **thinking, tool_choice="required")["choices"][0]["message"]
        assert message.keys() == {"role", "content", "refusal", "tool_calls"}
        grammar = json.loads(server.engine.submissions[-1].params.grammar.text)
        assert grammar["minItems"] == 1
        post(server, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
        assert json.loads(server.engine.submissions[-1].params.grammar.text)["maxItems"] == 1
    with saying('{"a": 1}', PLAIN_TEMPLATE) as server, server.client() as server.http:
        (choice,) = post(server, tools=[TOOL, OTHER_TOOL], tool_choice=NAMED)["choices"]
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
        assert choice["finish_reason"] == "stop"


def test_tools_of_a_model_without_a_dialect_are_refused_unless_a_call_is_forced():
    with saying("x", PLAIN_TEMPLATE) as server, server.client() as server.http:
        error = refused(server, tools=[TOOL])
        assert error["param"] == "tools"
        assert "--tool-call-parser" in error["message"]
        assert post(server, tools=[TOOL], tool_choice="none")
    with saying(CALL, PLAIN_TEMPLATE, tool_call_parser="hermes") as server, server.client() as server.http:
        assert post(server, tools=[TOOL])["choices"][0]["finish_reason"] == "tool_calls"
