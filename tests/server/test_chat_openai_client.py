"""The official client's chats against a real server."""

import json

import openai
import pytest
from toy_chat import TEMPLATE, TOOL, USER
from toy_server import FakeEngine, run_server, says, toy_info

TALK = "<think>hm</think>Hé 😀!\nbye"
CALLS = (
    'Sure. <tool_call>{"name": "f", "arguments": {"city": "Oslo"}}</tool_call>\n'
    '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
)


@pytest.fixture(scope="module")
def client():
    def script(submission):
        has_tools = len(submission.prompt_token_ids) > 40
        return says(CALLS if has_tools else TALK)(submission)

    engine = FakeEngine(script, info=toy_info(max_model_len=1000))
    with (
        run_server(engine, template=TEMPLATE) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
    ):
        yield client


def test_the_official_client_gets_the_same_whole_and_streamed(client):
    asked = {"model": "toy", "messages": [USER], "logprobs": True, "top_logprobs": 2, "stop": "bye"}
    whole = client.chat.completions.create(**asked)
    (choice,) = whole.choices
    assert (choice.message.content, choice.finish_reason) == ("Hé 😀!\n", "stop")
    assert choice.message.reasoning_content == "hm"
    assert whole.usage.completion_tokens_details.reasoning_tokens == len("<think>hm</think>")
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == choice.message.content
    assert chunks[-1].usage == whole.usage
    entries = [e for chunk in chunks for c in chunk.choices if c.logprobs for e in c.logprobs.content]
    assert entries == choice.logprobs.content
    assert bytes(b for entry in entries for b in entry.bytes).decode() == TALK


def test_the_official_stream_helper_puts_calls_together(client):
    tools = [{**TOOL, "function": {**TOOL["function"], "strict": True}}]
    with client.chat.completions.stream(model="toy", messages=[USER], tools=tools) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    (choice,) = final.choices
    assert kinds >= {"chunk", "content.delta", "tool_calls.function.arguments.delta"}
    assert (choice.message.content, choice.finish_reason) == ("Sure.", "tool_calls")
    calls = [call.function for call in choice.message.tool_calls]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("f", {"city": "Oslo"}), ("f", {})]
    whole = client.chat.completions.create(model="toy", messages=[USER], tools=tools).choices[0]
    assert [call.function.arguments for call in whole.message.tool_calls] == [c.arguments for c in calls]
    answers = [{"role": "tool", "tool_call_id": call.id, "content": "7"} for call in whole.message.tool_calls]
    again = [USER, whole.message.model_dump(), *answers]
    assert client.chat.completions.create(model="toy", messages=again).choices


def test_the_official_client_raises_what_the_status_means(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="toy", messages=[{"role": "user", "content": "x" * 2000}])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    with pytest.raises(openai.BadRequestError, match="image_url") as caught:
        client.chat.completions.create(model="toy", messages=[{"role": "user", "content": [part]}])
    assert caught.value.param == "messages.0.content.0"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=[USER])
