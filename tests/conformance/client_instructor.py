"""instructor: classes out of tools and out of JSON schemas, whole and in parts."""

import sys
from typing import Literal

import instructor
import openai
from client_cases import Cases, arguments
from pydantic import BaseModel, ConfigDict, Field

case = Cases()
ASKED = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Whom shall I send?"}],
    "seed": 1,
    "max_tokens": 300,
    "max_retries": 0,
}


class Order(BaseModel):
    """Send men to somebody."""

    model_config = ConfigDict(extra="forbid")

    to: Literal["king", "queen"]
    men: int = Field(ge=0, le=9)
    note: str = Field(max_length=12)


def made(client, mode):
    url, key = client
    return instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0), mode=mode)


def check(order):
    assert isinstance(order, Order)
    assert order.to in ("king", "queen")


@case
def a_class_out_of_a_tool(client):
    check(made(client, instructor.Mode.TOOLS).create(response_model=Order, **ASKED))


@case
def a_class_out_of_a_json_schema(client):
    check(made(client, instructor.Mode.JSON_SCHEMA).create(response_model=Order, **ASKED))


@case
def a_class_that_grows(client):
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        parts = list(made(client, mode).create_partial(response_model=Order, **ASKED))
        assert parts
        assert parts[-1].to in ("king", "queen")


@case
def a_class_with_the_answer_beside_it(client):
    mode = instructor.Mode.TOOLS
    order, answer = made(client, mode).create_with_completion(response_model=Order, **ASKED)
    check(order)
    assert answer.usage.completion_tokens > 0


if __name__ == "__main__":
    sys.exit(case.run(arguments(), ["instructor", "openai"]))
