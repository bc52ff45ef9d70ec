"""Cases of the official Python client: the Responses API. Run by `client_openai.py`."""

import time

import openai
from client_cases import raises, same
from client_openai_chat import SCHEMA, Order, check_order

ASKED = {"model": "demo", "input": "What news, my lord?", "max_output_tokens": 300, "extra_body": {"seed": 1}}
TOOL = {"type": "function", "name": "send", "parameters": SCHEMA, "strict": True}
WAIT_S = 30


def responses_whole_and_streamed(client):
    whole = client.responses.create(**ASKED)
    assert whole.status in ("completed", "incomplete"), whole.status
    assert whole.output_text
    with client.responses.stream(**ASKED) as stream:
        events = list(stream)
        final = stream.get_final_response()
    same(final.output_text, whole.output_text)
    same(final.usage, whole.usage)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    same("".join(deltas), whole.output_text)
    same([event.sequence_number for event in events], list(range(len(events))))
    same(events[0].type, "response.created")


def responses_are_kept_and_deleted(client):
    made = client.responses.create(**ASKED)
    same(client.responses.retrieve(made.id).output_text, made.output_text)
    client.responses.delete(made.id)
    raises(openai.NotFoundError, lambda: client.responses.retrieve(made.id))


def responses_go_on_by_id(client):
    first = client.responses.create(**ASKED)
    second = client.responses.create(**ASKED | {"input": "And then?"}, previous_response_id=first.id)
    same(second.previous_response_id, first.id)
    assert second.usage.input_tokens > first.usage.total_tokens
    raises(openai.NotFoundError, lambda: client.responses.create(**ASKED, previous_response_id="resp_none"))


def responses_in_the_background(client):
    response = client.responses.create(**ASKED, background=True)
    deadline = time.monotonic() + WAIT_S
    while response.status in ("queued", "in_progress") and time.monotonic() < deadline:
        time.sleep(0.05)
        response = client.responses.retrieve(response.id)
    assert response.status in ("completed", "incomplete"), response.status
    same(client.responses.cancel(response.id).status, response.status)


def responses_parse_with_a_class(client):
    parsed = client.responses.parse(**ASKED, text_format=Order)
    assert isinstance(parsed.output_parsed, Order)


def responses_forced_call(client):
    response = client.responses.create(
        **ASKED, tools=[TOOL], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = [item for item in response.output if item.type == "function_call"]
    same(call.name, "send")
    check_order(call.arguments)


def responses_errors(client):
    error = raises(openai.BadRequestError, lambda: client.responses.create(**ASKED, temperature=3))
    same(error.param, "temperature")
    error = raises(openai.BadRequestError, lambda: client.responses.create(**ASKED, truncation="auto"))
    same(error.param, "truncation")


CASES = (
    responses_whole_and_streamed, responses_are_kept_and_deleted, responses_go_on_by_id,
    responses_in_the_background, responses_parse_with_a_class, responses_forced_call, responses_errors,
)  # fmt: skip
