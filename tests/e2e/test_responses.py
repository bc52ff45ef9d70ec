"""Responses of the demo model: a conversation that goes on by ids, streamed and in the background."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from toy_process import ServedProcess, serve

DEMO = Path(__file__).resolve().parents[2] / "configs" / "demo"
MORE = "And what of the king?"


@pytest.fixture(scope="module")
def served() -> Iterator[ServedProcess]:
    with serve(DEMO, "--threads", "1", "--max-num-seqs", "4") as process:
        yield process


@pytest.fixture
def client(served: ServedProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_conversation_goes_on_with_the_tokens_that_it_had(
    served: ServedProcess, client: openai.OpenAI
) -> None:
    first = client.responses.create(model="demo", input="What news, my lord?", extra_body={"seed": 1})
    assert first.status == "completed"
    asked = {"model": "demo", "input": MORE, "previous_response_id": first.id, "extra_body": {"seed": 2}}
    second = client.responses.create(**asked)
    sent = {"prompt": f"<|user|>{MORE}<|end|><|assistant|>", "add_special_tokens": False}
    num_new = httpx.post(f"{served.url}/tokenize", json=sent).json()["count"]
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens == first.usage.total_tokens + num_new
    assert second.to_dict()["mambad"]["cache"]["missed_tokens"] == {"disabled": second.usage.input_tokens}
    with client.responses.stream(**asked) as events:
        texts = [event.delta for event in events if event.type == "response.output_text.delta"]
        final = events.get_final_response()
    assert "".join(texts) == final.output_text == second.output_text
    assert final.usage == second.usage


def test_a_format_is_kept_to_in_the_background(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"to": {"enum": ["king", "queen"]}, "men": {"type": "integer", "maximum": 9}},
        "required": ["to", "men"],
        "additionalProperties": False,
    }
    text = {"format": {"type": "json_schema", "name": "order", "schema": schema, "strict": True}}
    response = client.responses.create(
        model="demo", input="Send men.", text=text, background=True, max_output_tokens=200
    )
    deadline = time.monotonic() + 30
    while response.status in ("queued", "in_progress") and time.monotonic() < deadline:
        time.sleep(0.05)
        response = client.responses.retrieve(response.id)
    assert response.status == "completed"
    assert list(json.loads(response.output_text)) == ["to", "men"]
