"""langchain-openai: chats, streams, tools in a loop, structured output, the Responses API, completions."""

import os
import sys
from typing import Literal

import openai
from client_cases import Cases, arguments, raises, same
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

os.environ.setdefault("LANGSMITH_TRACING", "false")
case = Cases()
ASK = [SystemMessage("A hall."), HumanMessage("What news, my lord?")]


class Order(BaseModel):
    """Send men to somebody."""

    to: Literal["king", "queen"]
    men: int = Field(ge=0, le=9)


@tool
def send(to: Literal["king", "queen"], soon: bool) -> str:
    """Send somebody."""
    return f"sent to the {to}{' soon' if soon else ''}"


def chat_model(client, **options):
    url, key = client
    settings = {"model": "demo", "seed": 1, "max_tokens": 300, "max_retries": 0, "stream_usage": True}
    return ChatOpenAI(base_url=f"{url}/v1", api_key=key, **(settings | options))


@case
def invoke_and_stream_agree(client):
    model = chat_model(client)
    whole = model.invoke(ASK)
    assert whole.content
    chunks = list(model.stream(ASK))
    same("".join(chunk.content for chunk in chunks), whole.content)
    same(whole.usage_metadata["total_tokens"], sum(
        chunk.usage_metadata["total_tokens"] for chunk in chunks if chunk.usage_metadata
    ))  # fmt: skip
    assert whole.response_metadata["finish_reason"] in ("stop", "length")


@case
def a_batch_is_answered_in_order(client):
    model = chat_model(client, temperature=0)
    questions = ["Who goes there?", "What is a king?", "Good night."]
    alone = [model.invoke(question).content for question in questions]
    same([answer.content for answer in model.batch(questions)], alone)


@case
def log_probabilities_arrive(client):
    answer = chat_model(client, logprobs=True, top_logprobs=2).invoke(ASK)
    entries = answer.response_metadata["logprobs"]["content"]
    same(len(entries), answer.usage_metadata["output_tokens"])


@case
def a_tool_is_called_and_its_answer_is_read(client):
    model = chat_model(client)
    answer = model.bind_tools([send], tool_choice="any", strict=True, parallel_tool_calls=False).invoke(ASK)
    (call,) = answer.tool_calls
    same(call["name"], "send")
    result = send.invoke(call)
    assert isinstance(result, ToolMessage)
    assert "sent to the" in result.content
    assert model.bind_tools([send]).invoke([*ASK, answer, result]).content is not None


@case
def calls_are_streamed(client):
    model = chat_model(client).bind_tools([send], tool_choice="send", strict=True, parallel_tool_calls=False)
    whole = None
    for chunk in model.stream(ASK):
        whole = chunk if whole is None else whole + chunk
    (call,) = whole.tool_calls
    same((call["name"], set(call["args"])), ("send", {"to", "soon"}))


@case
def structured_output_is_an_object(client):
    for method in ("json_schema", "function_calling"):
        order = chat_model(client).with_structured_output(Order, method=method, strict=True).invoke(ASK)
        assert isinstance(order, Order), (method, order)


@case
def the_responses_api_works(client):
    model = chat_model(client, use_responses_api=True, seed=None, temperature=0)
    whole = model.invoke(ASK)
    assert whole.text
    streamed = "".join(chunk.text for chunk in model.stream(ASK))
    same(streamed, whole.text)


@case
def text_completions_work(client):
    url, key = client
    model = OpenAI(
        base_url=f"{url}/v1", api_key=key, model="demo", temperature=0, max_tokens=20, max_retries=0
    )
    whole = model.invoke("Now is the winter")
    assert whole
    same("".join(model.stream("Now is the winter")), whole)


@case
def a_prompt_too_long_is_told_as_such(client):
    error = raises(openai.BadRequestError, lambda: chat_model(client).invoke("x " * 30_000))
    same(error.code, "context_length_exceeded")


if __name__ == "__main__":
    sys.exit(case.run(arguments(), ["langchain-openai", "langchain-core", "openai"]))
