"""Chats with the demo model as it ships: its template, the end of its turns, and calls that are forced."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from toy_process import ServedProcess, serve

from mambad.server import cli

DEMO = Path(__file__).resolve().parents[2] / "configs" / "demo"
END_ID = 3
ASKED = {"model": "demo", "messages": [{"role": "user", "content": "What news, my lord?"}]}
TOOL = {
    "type": "function",
    "function": {
        "name": "send",
        "parameters": {
            "type": "object",
            "properties": {
                "to": {"enum": ["king", "queen"]},
                "men": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "required": ["to", "men"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def served() -> Iterator[ServedProcess]:
    with serve(DEMO, "--threads", "1", "--max-num-seqs", "4") as process:
        yield process


@pytest.fixture
def client(served: ServedProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_turn_ends_with_its_token_and_streams_as_it_is(client: openai.OpenAI) -> None:
    ended = 0
    for seed in range(4):
        whole = client.chat.completions.create(**ASKED, seed=seed, extra_body={"return_token_ids": True})
        (choice,) = whole.choices
        chunks = client.chat.completions.create(**ASKED, seed=seed, stream=True)
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks]
        assert "".join(texts) == choice.message.content
        assert "<|" not in choice.message.content
        if choice.finish_reason == "stop":
            ended += 1
            assert choice.token_ids[-1] == END_ID
    assert ended == 4


def test_a_prompt_has_the_tokens_of_the_template(served: ServedProcess) -> None:
    sent = {"messages": [{"role": "system", "content": "A hall."}, *ASKED["messages"]]}
    by_messages = httpx.post(f"{served.url}/tokenize", json=sent).json()
    text = "A hall.\n<|user|>What news, my lord?<|end|><|assistant|>"
    assert by_messages == httpx.post(f"{served.url}/tokenize", json={"prompt": text}).json()


def test_a_forced_call_keeps_to_its_schema(client: openai.OpenAI) -> None:
    forced = {"tools": [TOOL], "seed": 1, "max_tokens": 200, "parallel_tool_calls": False}
    (choice,) = client.chat.completions.create(**ASKED, **forced, tool_choice="required").choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or ()
    arguments = json.loads(call.function.arguments)
    assert (call.function.name, list(arguments)) == ("send", ["to", "men"])
    assert arguments["to"] in ("king", "queen")
    named = {"type": "function", "function": {"name": "send"}}
    (choice,) = client.chat.completions.create(**ASKED, **forced, tool_choice=named).choices
    assert choice.finish_reason == "stop"
    (call,) = choice.message.tool_calls or ()
    assert json.loads(call.function.arguments)["men"] <= 9


def test_the_small_client_talks_to_it(served: ServedProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["chat", "What news?", "--url", served.url, "--seed", "1", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.strip()
