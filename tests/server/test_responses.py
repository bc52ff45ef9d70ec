"""`/v1/responses` with the official client: what comes back, and what is refused by name."""

import itertools
import json

import openai
import pydantic
import pytest
from toy_chat import USER
from toy_responses import FUNCTION, PATH, masked, post, prompts_of, serving
from toy_server import says
from type_confusion import confused_requests, problem_of

TALK = "<think>hm</think>Hé 😀!"
CALLS = (
    'Sure.<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
)


@pytest.fixture(scope="module")
def server():
    def script(submission):
        prompt = bytes(i - 1 for i in submission.prompt_token_ids if i).decode()
        if submission.params.grammar is not None:
            return says('{"x": 5}')(submission)
        return says("seven" if "<tool>" in prompt else CALLS if '"name": "f"' in prompt else TALK)(submission)

    with serving(script) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        yield client


def test_a_response_is_what_the_official_client_expects(client):
    response = client.responses.create(model="toy", input="hi", instructions="be brief", metadata={"k": "v"})
    thought, message = response.output
    assert (thought.type, thought.content[0].text, thought.status) == ("reasoning", "hm", "completed")
    assert (message.type, message.role, message.content[0].annotations) == ("message", "assistant", [])
    assert response.output_text == "Hé 😀!"
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    usage = response.usage
    assert usage.output_tokens == len(TALK.encode()) + 1
    assert usage.output_tokens_details.reasoning_tokens == len("<think>hm</think>")
    assert (usage.input_tokens_details.cached_tokens, usage.total_tokens) == (
        0, usage.input_tokens + usage.output_tokens,
    )  # fmt: skip
    assert (response.instructions, response.metadata, response.tool_choice) == (
        "be brief",
        {"k": "v"},
        "auto",
    )
    assert (response.temperature, response.top_p, response.parallel_tool_calls) == (1.0, 1.0, True)
    assert response.text.format.type == "text"
    type(response).model_validate(response.model_dump())  # nothing that is required is missing


def test_a_response_can_be_asked_for_again_and_deleted(client):
    response = client.responses.create(model="toy", input="hi")
    assert client.responses.retrieve(response.id) == response
    assert client.responses.cancel(response.id) == response
    client.responses.delete(response.id)
    for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError) as caught:
            ask(response.id)
        assert (caught.value.code, caught.value.param) == ("response_not_found", "response_id")


def test_what_is_not_to_be_stored_is_not(client):
    response = client.responses.create(model="toy", input="hi", store=False)
    assert response.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="toy", input="hi", previous_response_id=response.id)
    assert (caught.value.code, caught.value.param) == (
        "previous_response_not_found", "previous_response_id",
    )  # fmt: skip


def test_calls_go_round_by_items_and_by_the_previous_response(client, server):
    tools = [FUNCTION]
    first = client.responses.create(model="toy", input="hi", tools=tools)
    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    calls = first.output[1:]
    assert [json.loads(call.arguments) for call in calls] == [{"a": 1}, {}]
    answers = [{"type": "function_call_output", "call_id": c.call_id, "output": "7"} for c in calls]
    by_id = client.responses.create(model="toy", input=answers, previous_response_id=first.id, tools=tools)
    sent_back = [{"role": "user", "content": "hi"}, *(item.to_dict() for item in first.output), *answers]
    by_items = client.responses.create(model="toy", input=sent_back, tools=tools)
    assert by_id.output_text == by_items.output_text == "seven"
    one, other = prompts_of(server)[-2:]
    assert one == other
    assert one.endswith("<tool>7<|endoftext|><tool>7<|endoftext|><assistant>")


def test_items_can_be_named_instead_of_sent(client, server):
    first = client.responses.create(model="toy", input="hi")
    named = [{"type": "item_reference", "id": item.id} for item in first.output]
    client.responses.create(model="toy", input=[USER, *named, USER])
    client.responses.create(model="toy", input=[USER], previous_response_id=first.id)
    one, other = prompts_of(server)[-2:]
    assert one == other
    with pytest.raises(openai.NotFoundError, match="msg_nobody") as caught:
        client.responses.create(model="toy", input=[{"id": "msg_nobody", "type": "item_reference"}])
    assert (caught.value.code, caught.value.param) == ("item_not_found", "input.0.id")


def test_a_text_keeps_to_its_format(client, server):
    class Answer(pydantic.BaseModel):
        x: int

    parsed = client.responses.parse(model="toy", input="hi", text_format=Answer)
    assert parsed.output_parsed == Answer(x=5)
    grammar = server.engine.submissions[-1].params.grammar
    assert (grammar.kind, grammar.field) == ("json", "text.format.schema")
    assert json.loads(grammar.text)["properties"]["x"]["type"] == "integer"
    schema = {"type": "object", "properties": {"a": {"pattern": "("}}}
    wrong = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match=r"`text\.format\.schema`") as caught:
        client.responses.create(model="toy", input="hi", text=wrong)
    assert (caught.value.code, caught.value.param) == ("invalid_grammar", "text.format.schema")


def test_log_probabilities_are_those_of_the_text(client):
    asked = {"model": "toy", "input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = client.responses.create(**asked)
    (part,) = response.output[1].content
    assert bytes(byte for entry in part.logprobs for byte in entry.bytes).decode() == part.text
    assert {len(entry.top_logprobs) for entry in part.logprobs} == {2}
    assert client.responses.create(model="toy", input="hi").output[1].content[0].logprobs == []
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**asked, tools=[FUNCTION])
    assert caught.value.param == "top_logprobs"


def test_an_answer_that_is_too_long_is_incomplete(client):
    response = client.responses.create(model="toy", input="hi", max_output_tokens=20)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert [item.status for item in response.output] == ["completed", "incomplete"]
    assert response.usage.output_tokens == 20


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"conversation": "c"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
        ({"n": 2}, "n", "unsupported_parameter"),
        ({"n": True}, "n", "invalid_value"),
        ({"response_format": {"type": "text"}}, "response_format", "unsupported_parameter"),
        ({"max_tokens": 5}, "max_tokens", "unsupported_parameter"),
        ({"messages": []}, "messages", "unsupported_parameter"),
        ({"logprobs": True}, "logprobs", "unsupported_parameter"),
        ({"background": True, "stream": True}, "background", "unsupported_parameter"),
        ({"background": True, "store": False}, "background", "invalid_value"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", "invalid_value"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort", "unsupported_parameter"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "invalid_value"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "invalid_value"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "invalid_value"),
        ({"tools": [{**FUNCTION, "async": True}]}, "tools.0.async", "unsupported_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "mcp"}}, "tool_choice", "unsupported_parameter"),
        ({"tools": [FUNCTION], "tool_choice": {**FUNCTION, "name": "g"}}, "tool_choice", "invalid_value"),
        ({"metadata": {"k": 1}}, "metadata.k", "invalid_value"),
        ({"include": ["x"]}, "include.0", "invalid_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"min_tokens": 9, "max_output_tokens": 1}, "min_tokens", "invalid_value"),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
        ({"input": None}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": 5}, "input", "invalid_value"),
        ({"input": "x" * 5000}, "input", "context_length_exceeded"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(server, body, param, code):
    error = post(server, 400, **body)["error"]
    assert (error["param"], error["code"]) == (param, code)
    others = {"`messages`", "`reasoning_effort`", "`max_tokens`"} - {f"`{param}`"}
    assert not any(name in error["message"] for name in others)


@pytest.mark.parametrize(
    ("item", "where", "code"),
    [
        (5, "", "invalid_value"),
        ({"type": "computer_call"}, ".type", "unsupported_parameter"),
        ({"type": []}, ".type", "unsupported_parameter"),
        ({"role": "tool", "content": "x"}, ".role", "invalid_value"),
        ({"role": "user", "content": 5}, ".content", "invalid_value"),
        ({"role": "user", "content": [{"type": "input_image"}]}, ".content.0", "unsupported_parameter"),
        ({"role": "user", "content": [{"type": "input_text"}]}, ".content.0.text", "invalid_value"),
        ({"role": "user", "content": [{"type": []}]}, ".content.0", "invalid_value"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, ".call_id", "invalid_value"),
        ({"type": "function_call_output", "call_id": "c", "output": None}, ".output", "invalid_value"),
        ({"type": "reasoning", "encrypted_content": "x"}, ".encrypted_content", "unsupported_parameter"),
        ({"type": "reasoning", "summary": [5]}, ".summary.0", "invalid_value"),
        ({"type": "reasoning", "content": {}, "summary": "s"}, ".content", "invalid_value"),
        ({"type": "reasoning", "content": 0}, ".content", "invalid_value"),
        ({"type": "item_reference"}, ".id", "invalid_value"),
    ],
)
def test_an_item_that_cannot_be_read_is_refused_by_name(server, item, where, code):
    first = post(server)["id"]
    error = post(server, 400, input=[USER, item], previous_response_id=first)["error"]
    assert (error["param"], error["code"]) == (f"input.1{where}", code)


def test_what_asks_for_nothing_is_taken(server):
    plain = post(server)
    nothing = {
        "n": 1, "truncation": "disabled", "conversation": None, "tools": [], "tool_choice": "auto",
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "stream": False, "background": False,
        "include": ["reasoning.encrypted_content"], "reasoning": {"effort": None}, "service_tier": "auto",
        "stream_options": None,
    }  # fmt: skip
    assert masked(post(server, **nothing)) == masked(plain)


def test_nothing_confuses_it(server):
    description = server.http.get("/openapi.json").json()
    requests = (each for each in confused_requests(description, 3) if each.path == PATH)
    statuses = set()
    for request in itertools.islice(requests, 500):
        headers = {"content-type": "application/json"}
        answer = server.http.post(PATH, content=request.body, headers=headers)
        problem = problem_of(answer.status_code, answer.headers["content-type"], answer.content)
        assert problem is None, f"{request.body[:500]!r}: {problem}"
        statuses.add(answer.status_code)
    assert statuses >= {200, 400, 404}


def test_a_model_without_a_template_says_so():
    with serving(says("x"), template=None) as server:
        error = post(server, 400)["error"]
    assert (error["param"], error["code"]) == ("input", "chat_template_missing")
    assert "--chat-template" in error["message"]


def test_a_stream_of_what_is_stored_is_not_to_be_had(server):
    response = post(server)
    answer = server.http.get(f"/v1/responses/{response['id']}", params={"stream": "true"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")
