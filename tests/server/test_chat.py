"""`POST /v1/chat/completions` over real HTTP: bytes of streams and bodies, and what each field does."""

import json

import pytest
from tokenizers.processors import TemplateProcessing
from toy_chat import (
    OTHER_TOOL,
    PATH,
    PLAIN_TEMPLATE,
    TEMPLATE,
    TOOL,
    USER,
    join,
    masked,
    post,
    prompt_of,
    refused,
    saying,
    stream,
    without_index,
)
from toy_server import EOS_ID, FakeEngine, byte_ids, byte_tokenizer, run_server, says, toy_info, wait_until


@pytest.fixture(scope="module")
def server():
    with run_server(template=TEMPLATE) as running, running.client() as client:
        running.http = client
        yield running


def test_a_stream_has_these_bytes():
    with saying("Hi", PLAIN_TEMPLATE) as server, server.client() as client:
        answer = client.post(PATH, json={"messages": [USER], "max_tokens": 2, "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    head = '"id":"chatcmpl-ID","object":"chat.completion.chunk","created":1,"model":"toy"'

    def chunk(delta, more=""):
        return f'data: {{{head}{more},"choices":[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":'

    fingerprint = ',"system_fingerprint":"fp_0"'
    assert masked(answer.text) == (
        chunk('{"role":"assistant","content":""}') + "null}]}\n\n"
        + chunk('{"content":"H"}') + "null}]}\n\n"
        + chunk('{"content":"i"}') + "null}]}\n\n"
        + chunk("{}", fingerprint) + '"length"}],'
        '"mambad":{"cache":{"cached_tokens":0,"missed_tokens":{"disabled":13}}}}\n\n'
        "data: [DONE]\n\n"
    )  # fmt: skip


def test_a_whole_answer_has_these_bytes():
    with saying("Hi") as server, server.client() as client:
        body = {"messages": [USER], "logprobs": True, "top_logprobs": 1, "max_completion_tokens": 1}
        answer = client.post(PATH, json=body)
    assert masked(answer.text) == (
        '{"id":"chatcmpl-ID","object":"chat.completion","created":1,"model":"toy","system_fingerprint":"fp_0",'
        '"choices":[{"index":0,"message":{"role":"assistant","content":"H","refusal":null},"logprobs":'
        '{"content":[{"token":"H","logprob":-1.25,"bytes":[72],"top_logprobs":[{"token":"a","logprob":-0.5,'
        '"bytes":[97]}]}],"refusal":null},"finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":'
        '13,"completion_tokens":1,"total_tokens":14,"prompt_tokens_details":{"cached_tokens":0},'
        '"completion_tokens_details":{"reasoning_tokens":0}},'
        '"mambad":{"cache":{"cached_tokens":0,"missed_tokens":{"disabled":13}}}}'
    )


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    "more", [{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 3}, {"stop": "c"}]
)
def test_a_stream_adds_up_to_the_whole_answer(server, n, more):
    body = {"n": n, "seed": 3, "max_tokens": 12, **more}
    whole = post(server, **body)
    chunks = stream(server, **body, stream_options={"include_usage": True})
    assert join(chunks) == without_index(whole)
    assert [choice["index"] for choice in whole["choices"]] == list(range(n))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    assert {chunk["usage"] for chunk in chunks[:-1]} == {None}
    assert whole["usage"]["prompt_tokens"] == len("<user>hi<bot>")
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["id"].startswith("chatcmpl-")


def test_usage_comes_only_when_it_was_asked_for(server):
    assert all("usage" not in chunk for chunk in stream(server, max_tokens=3))
    assert all("usage" not in chunk for chunk in stream(server, max_tokens=3, stream_options={}))
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [c["usage"]["completion_tokens"] for c in stream(server, max_tokens=2, stream_options=options)]
    assert counts == [1, 1, 2, 2, 2]


def test_the_limit_has_two_names_and_a_default_within_the_context(server):
    def tokens(**body):
        return post(server, **body)["usage"]["completion_tokens"]

    assert tokens(max_tokens=3) == 3
    assert tokens(max_tokens=3, max_completion_tokens=5) == 5
    assert tokens() == 256 - len("<user>hi<bot>")
    with run_server(template=TEMPLATE, default_chat_tokens=7) as other, other.client() as other.http:
        assert post(other)["usage"]["completion_tokens"] == 7


def test_the_token_that_ends_a_turn_ends_the_answer():
    with saying("ab") as server, server.client() as server.http:
        (choice,) = post(server, return_token_ids=True)["choices"]
        assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == (
            "ab",
            "stop",
            None,
        )
        assert choice["token_ids"] == [*byte_ids("ab"), EOS_ID]
        assert (
            post(server, ignore_eos=True, skip_special_tokens=False)["choices"][0]["message"]["content"]
            != "ab"
        )


def test_the_tokenizer_names_the_end_of_a_turn_where_the_model_does_not():
    engine = FakeEngine(says("ab"), info=toy_info(eos_token_ids=()))
    with run_server(engine, template=TEMPLATE) as server, server.client() as server.http:
        post(server, stop_token_ids=[5])
        assert engine.submissions[-1].params.stop_token_ids == (5, EOS_ID)
        post(server, ignore_eos=True)
        assert engine.submissions[-1].params.stop_token_ids == ()


def test_roles_and_parts_become_what_templates_know(server):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    bare = {"id": "2", "function": {"name": "g", "arguments": ""}}
    broken = {"id": "3", "function": {"name": "h", "arguments": '{"x'}}
    messages = [
        {"role": "developer", "content": "be"},
        {"role": "user", "content": parts, "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [call, bare, broken]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "42"}]},
        {"role": "function", "name": "f", "content": "43"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        USER,
    ]
    assert prompt_of(server, messages=messages) == (
        '<system>be<user>a\nb<assistant>{"name": "f", "arguments": {"x": 1}}'
        '{"name": "g", "arguments": {}}{"name": "h", "arguments": "{\\"x"}<tool>42<tool>43<assistant>no'
        "<user>hi<bot>"
    )


def test_the_generation_prompt_may_be_left_out_and_a_message_continued(server):
    last = {"role": "assistant", "content": "so far "}
    assert prompt_of(server, add_generation_prompt=False) == "<user>hi"
    assert (
        prompt_of(server, messages=[USER, last], continue_final_message=True) == "<user>hi<assistant>so far "
    )
    body = {"messages": [USER, last], "continue_final_message": True, "max_tokens": 2, "echo": True}
    assert post(server, **body)["choices"][0]["message"]["content"].startswith("so far ")
    assert join(stream(server, **body, seed=1)) == without_index(post(server, **body, seed=1))
    error = refused(server, continue_final_message=True, add_generation_prompt=True)
    assert error["param"] == "continue_final_message"
    with run_server(template="no messages") as other, other.client() as other.http:
        assert refused(other, continue_final_message=True)["param"] == "continue_final_message"


def test_a_template_gets_variables_tools_and_documents():
    source = (
        "{{ x }} {{ tools | tojson }} {{ documents | tojson }} {{ eos_token[2:5] }} {{ reasoning_effort }}"
    )
    with run_server(template=source, tool_call_parser="hermes") as server, server.client() as server.http:
        body = {"chat_template_kwargs": {"x": 1}, "documents": [{"text": "d"}], "reasoning_effort": "low"}
        text = prompt_of(server, **body, tools=[OTHER_TOOL])
        assert text == f'1 {json.dumps([OTHER_TOOL])} [{{"text": "d"}}] end low'
        for name in ("messages", "eos_token"):
            assert refused(server, chat_template_kwargs={name: []})["param"] == "chat_template_kwargs"


def test_no_beginning_of_sequence_is_added_twice():
    text = byte_tokenizer()
    text.bos_token = "<|endoftext|>"
    text._tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    sources = {"{{ eos_token }}x": [0, *byte_ids("x")], "x": byte_ids("x")}
    for source, ids in sources.items():
        with run_server(text=text, template=source) as server, server.client() as server.http:
            post(server, max_tokens=1)
            assert list(server.engine.submissions[-1].prompt_token_ids) == ids
            post(server, max_tokens=1, add_special_tokens=True)
            assert list(server.engine.submissions[-1].prompt_token_ids) == [0, *byte_ids("x")]


def test_token_ids_come_beside_the_message(server):
    body = {"seed": 1, "max_tokens": 4, "return_token_ids": True, "n": 2}
    whole, chunks = post(server, **body), stream(server, **body)
    assert whole["prompt_token_ids"] == chunks[0]["prompt_token_ids"] == byte_ids("<user>hi<bot>")
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    for choice in whole["choices"]:
        assert choice["token_ids"] == byte_ids(choice["message"]["content"])
    named = post(server, logprobs=True, return_tokens_as_token_ids=True, seed=1, max_tokens=1)
    (entry,) = named["choices"][0]["logprobs"]["content"]
    assert entry["token"] == f"token_id:{whole['choices'][0]['token_ids'][0]}"


def test_what_the_answer_does_not_depend_on_is_accepted(server):
    assert post(
        server, metadata={"a": "b"}, store=True, user="u", service_tier="auto", safety_identifier="s",
        prediction={"type": "content", "content": "x"}, prompt_cache_key="k", prompt_cache_retention="24h",
        max_tokens=1,
        modalities=["text"], verbosity="medium", response_format={"type": "text"}, reasoning_effort="none",
        parallel_tool_calls=True, logprobs=False, audio=None, functions=None, tools=None,
    )  # fmt: skip


def test_a_stream_that_fails_ends_with_an_error_and_done():
    engine = FakeEngine(says("ab", ends=False), step_s=0.02)
    with run_server(engine, template=TEMPLATE) as server, server.client() as client:
        body = {"messages": [USER], "stream": True}
        with client.stream("POST", PATH, json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.call(engine.die)
            rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "engine_dead"


def test_a_client_that_leaves_ends_its_request():
    engine = FakeEngine(says("ab", ends=False), step_s=0.02)
    with run_server(engine, template=TEMPLATE) as server, server.client() as client:
        with client.stream("POST", PATH, json={"messages": [USER], "stream": True, "n": 2}) as answer:
            next(answer.iter_lines())
        wait_until(lambda: engine.num_running == 0, 2)
        assert set(engine.aborted.values()) == {"disconnect"}


def test_tokenize_reads_messages_as_a_chat_does(server):
    def tokenize(**body):
        return server.http.post("/tokenize", json=body).json()

    assert tokenize(messages=[USER])["tokens"] == byte_ids("<user>hi<bot>")
    assert tokenize(messages=[USER], add_generation_prompt=False)["tokens"] == byte_ids("<user>hi")
    with_tools = tokenize(messages=[USER], tools=[TOOL])
    assert with_tools["tokens"] == byte_ids(prompt_of(server, tools=[TOOL]))
    assert tokenize(messages=[USER], return_token_strs=True)["token_strs"][:2] == ["<", "u"]
    assert tokenize(messages=[])["error"]["param"] == "messages"
    assert tokenize(messages=[USER], prompt="x")["error"]["param"] == "prompt"
    assert server.http.get("/tokenizer_info").json()["chat_template"] == TEMPLATE
