"""Cases of the official Python client: chats, streams, tools, schemas. Run by `client_openai.py`."""

import json
from typing import Literal

import openai
from client_cases import raises, same
from pydantic import BaseModel, Field

MODEL = "demo"
USER = {"role": "user", "content": "What news, my lord?"}
ASKED = {"model": MODEL, "messages": [USER], "seed": 1, "max_completion_tokens": 200}
SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"enum": ["king", "queen"]},
        "men": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["to", "men"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "send", "description": "Send men.", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "stay", "parameters": {**SCHEMA}}}


class Order(BaseModel):
    """What an answer is made into."""

    to: Literal["king", "queen"]
    men: int = Field(ge=0, le=9)


def check_order(text):
    order = Order.model_validate_json(text)
    assert order.to in ("king", "queen")


def chat_whole_and_streamed(client):
    asked = {**ASKED, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked)
    (choice,) = whole.choices
    same(choice.message.role, "assistant")
    assert choice.message.content
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    same("".join(delta.content or "" for delta in deltas), choice.message.content)
    same([delta.role for delta in deltas if delta.role], ["assistant"])
    same(chunks[-1].usage, whole.usage)
    entries = [e for chunk in chunks for c in chunk.choices if c.logprobs for e in c.logprobs.content]
    same(entries, choice.logprobs.content)
    same(len(entries), whole.usage.completion_tokens)


def chat_stream_helper(client):
    with client.chat.completions.stream(**ASKED) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert kinds >= {"chunk", "content.delta", "content.done"}, kinds
    same(final.choices[0].message.content, client.chat.completions.create(**ASKED).choices[0].message.content)


def chat_several_choices(client):
    whole = client.chat.completions.create(**ASKED, n=3)
    same([choice.index for choice in whole.choices], [0, 1, 2])
    texts = dict.fromkeys(range(3), "")
    reasons = []
    for chunk in client.chat.completions.create(**ASKED, n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons += [choice.index] if choice.finish_reason else []
    same([texts[index] for index in range(3)], [choice.message.content for choice in whole.choices])
    same(sorted(reasons), [0, 1, 2])


def chat_json_schema(client):
    schema = {"name": "order", "schema": SCHEMA, "strict": True}
    form = {"type": "json_schema", "json_schema": schema}
    (choice,) = client.chat.completions.create(**ASKED, response_format=form).choices
    check_order(choice.message.content)
    same(choice.finish_reason, "stop")


def chat_json_object(client):
    asked = {**ASKED, "response_format": {"type": "json_object"}}
    (choice,) = client.chat.completions.create(**asked).choices
    assert choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


def chat_parse_with_a_class(client):
    (choice,) = client.chat.completions.parse(**ASKED, response_format=Order).choices
    assert isinstance(choice.message.parsed, Order)
    with client.chat.completions.stream(**ASKED, response_format=Order) as stream:
        final = stream.get_final_completion()
    same(final.choices[0].message.parsed, choice.message.parsed)


def chat_required_tools(client):
    asked = {**ASKED, "tools": [TOOL, OTHER], "tool_choice": "required", "parallel_tool_calls": False}
    whole = client.chat.completions.create(**asked).choices[0]
    same(whole.finish_reason, "tool_calls")
    (call,) = whole.message.tool_calls
    assert call.id
    assert call.function.name in ("send", "stay")
    check_order(call.function.arguments)
    with client.chat.completions.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.done" in kinds
    (again,) = final.message.tool_calls
    same((again.function.name, again.function.arguments), (call.function.name, call.function.arguments))
    same(final.finish_reason, "tool_calls")


def chat_named_tool(client):
    named = {"type": "function", "function": {"name": "send"}}
    (choice,) = client.chat.completions.create(**ASKED, tools=[TOOL, OTHER], tool_choice=named).choices
    (call,) = choice.message.tool_calls
    same((call.function.name, choice.finish_reason), ("send", "stop"))
    check_order(call.function.arguments)


def chat_without_tools(client):
    (choice,) = client.chat.completions.create(**ASKED, tools=[TOOL], tool_choice="none").choices
    assert choice.message.content
    assert not choice.message.tool_calls


def chat_goes_on(client):
    first = client.chat.completions.create(**ASKED).choices[0].message
    again = [{"role": "developer", "content": "A hall."}, USER, first, {**USER, "content": "And then?"}]
    assert client.chat.completions.create(**ASKED | {"messages": again}).choices[0].message.content


def chat_errors(client):
    def refused(kind=openai.BadRequestError, **changes):
        return raises(kind, lambda: client.chat.completions.create(**{**ASKED, **changes}))

    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    error = refused(messages=[{"role": "user", "content": [picture]}])
    same(error.param, "messages.0.content.0")
    error = refused(messages=[{"role": "user", "content": "x " * 30_000}], stream=True)
    same((error.code, error.param), ("context_length_exceeded", "messages"))
    same(refused(messages=[]).param, "messages")
    same(refused(tools=[]).param, "tools")
    same(refused(tool_choice="required").param, "tool_choice")
    same(refused(top_logprobs=3).param, "top_logprobs")
    refused(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 1}}})
    same(refused(openai.NotFoundError, model="other").code, "model_not_found")


CASES = (
    chat_whole_and_streamed, chat_stream_helper, chat_several_choices, chat_json_schema, chat_json_object,
    chat_parse_with_a_class, chat_required_tools, chat_named_tool, chat_without_tools, chat_goes_on,
    chat_errors,
)  # fmt: skip
