"""pydantic-ai: agents whose output is a class, by a tool and natively, streamed, over the Responses API."""

import asyncio
import sys
from typing import Literal

from client_cases import Cases, arguments, raises
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

case = Cases()
QUESTION = "Whom shall I send?"
SETTINGS = {"temperature": 0.5, "seed": 1, "max_tokens": 300, "parallel_tool_calls": False}


class Order(BaseModel):
    """Send somebody."""

    to: Literal["king", "queen"]
    soon: bool


def agent(client, output_type, kind=OpenAIChatModel, **changes):
    url, key = client
    model = kind("demo", provider=OpenAIProvider(base_url=f"{url}/v1", api_key=key))
    return Agent(model, output_type=output_type, model_settings={**SETTINGS, **changes}, retries=0)


@case
def text(client):
    result = agent(client, str).run_sync(QUESTION)
    assert result.output


@case
def a_conversation(client):
    first = agent(client, str).run_sync(QUESTION)
    assert agent(client, str).run_sync("And then?", message_history=first.all_messages()).output


@case
def a_class_by_a_tool(client):
    assert isinstance(agent(client, Order).run_sync(QUESTION).output, Order)


@case
def a_class_natively(client):
    assert isinstance(agent(client, NativeOutput(Order)).run_sync(QUESTION).output, Order)


@case
def a_class_streamed(client):
    async def stream():
        async with agent(client, Order).run_stream(QUESTION) as result:
            return await result.get_output()

    assert isinstance(asyncio.run(stream()), Order)


@case
def the_responses_api(client):
    # The settings that this API has.
    changes = {"seed": None}
    assert agent(client, str, OpenAIResponsesModel, **changes).run_sync(QUESTION).output
    native = NativeOutput(Order)
    assert isinstance(agent(client, native, OpenAIResponsesModel, **changes).run_sync(QUESTION).output, Order)


@case
def errors_have_their_status(client):
    error = raises(ModelHTTPError, lambda: agent(client, str).run_sync("x " * 30_000))
    assert error.status_code == 400
    assert "context_length_exceeded" in str(error)


if __name__ == "__main__":
    sys.exit(case.run(arguments(), ["pydantic-ai-slim", "openai"]))
