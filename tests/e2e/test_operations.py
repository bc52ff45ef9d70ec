"""What operators do to a running server: change its keys and certificate, end requests, score prompts."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from toy_process import ServedProcess, serve, served_model, wait_until_all_slots_are_free

FLAGS = ("--load-format", "dummy", "--max-num-seqs", "4", "--threads", "1", "--max-num-batched-tokens", "64")
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("old\n")
    return path


@pytest.fixture(scope="module")
def served(keys: Path):
    environment = {"MAMBAD_OVERRIDE_GENERATION_CONFIG": json.dumps({"temperature": 0.0})}
    flags = (*FLAGS, "--api-key-file", str(keys), "--admin-api-key-file", str(keys))
    with serve(served_model(), *flags, environment=environment) as running:
        yield running


@pytest.fixture
def client(served: ServedProcess):
    with httpx.Client(base_url=served.url, timeout=30, headers={"authorization": "Bearer old"}) as client:
        yield client


def test_aborted_requests_leave_the_engine_at_once(served: ServedProcess, client: httpx.Client) -> None:
    body = {"prompt": "x", "max_tokens": 1900, "ignore_eos": True, "request_id": "long", "n": 3}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.post, PATH, json=body)
        deadline = time.monotonic() + 10
        while client.get("/load").json()["server_load"] < 3:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert client.post("/abort_requests", json={"request_ids": ["cmpl-long"]}).json() == {
            "num_aborted": 3
        }
        assert answer.result(5).json()["error"]["code"] == "cancelled"
    wait_until_all_slots_are_free(served.url)
    text = client.get("/metrics").text
    assert (
        'mambad_requests_finished_total{engine="0",model_name="toy-granite",reason="cancelled"} 3.0' in text
    )


def test_scores_do_not_depend_on_what_else_is_asked_for(client: httpx.Client) -> None:
    """`echo`, `prompt_logprobs`, chunks of prefill, neighbours: the same numbers to the last digit."""
    prompts = [[(7 * i + j) % 256 for j in range(length)] for i, length in enumerate((1, 2, 65, 200))]

    def scores(prompts: list[list[int]], **body: object) -> list[list[float | None]]:
        answer = client.post(
            PATH, json={"prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 2, **body}
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == (
            len(prompts) if body.get("max_tokens") == 1 else 0
        )
        return [choice["logprobs"]["token_logprobs"] for choice in answer.json()["choices"]]

    together = scores(prompts)
    assert [len(each) for each in together] == [1, 2, 65, 200]
    assert together == [scores([prompt])[0] for prompt in prompts]
    assert together == [each[:-1] for each in scores(prompts, max_tokens=1)]
    for extra in ({"logprobs": 0}, {"prompt_logprobs": 5}):
        answer = client.post(
            PATH, json={"prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 2, **extra}
        )
        choices = answer.json()["choices"]
        assert [choice["logprobs"]["token_logprobs"] for choice in choices] == together
        if "prompt_logprobs" in extra:
            for prompt, choice, expected in zip(prompts, choices, together, strict=True):
                own = [
                    entry and entry[str(token_id)]["logprob"]
                    for token_id, entry in zip(prompt, choice["prompt_logprobs"], strict=True)
                ]
                assert own == expected


@pytest.mark.parametrize("is_stream", [False, True])
def test_log_probabilities_are_numbers_whatever_is_masked(client: httpx.Client, is_stream: bool) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    filters = [
        {"top_k": 1, "temperature": 1}, {"top_p": 0.01, "temperature": 1}, {"min_p": 1, "temperature": 2},
        {"logit_bias": {str(i): -100 for i in range(200)}}, {"allowed_token_ids": [7]}, {"temperature": 1e-4},
        {"bad_words": ["a", "b"], "min_tokens": 3, "temperature": 1}, {"repetition_penalty": 100},
    ]  # fmt: skip
    for extra in filters:
        for echo in (False, True):
            body = {
                "prompt": "abc",
                "max_tokens": 3,
                "logprobs": 5,
                "echo": echo,
                "stream": is_stream,
                "ignore_eos": True,
                **extra,
            }
            answer = client.post(PATH, json=body)
            assert answer.status_code == 200, answer.text
            events = answer.text.split("\n\n")[:-2] if is_stream else [answer.text]
            parts = [json.loads(event.removeprefix("data: "), parse_constant=refuse) for event in events]
            found = [part["choices"][0]["logprobs"] for part in parts]
            numbers = [number for logprobs in found for number in logprobs["token_logprobs"]]
            assert len(numbers) == 3 * (1 + echo), extra
            assert [number is None for number in numbers] == [echo] + [False] * (len(numbers) - 1)


def test_a_default_of_the_operator_counts(client: httpx.Client) -> None:
    texts = {
        client.post(PATH, json={"prompt": "abc", "max_tokens": 12, "seed": seed}).json()["choices"][0]["text"]
        for seed in range(4)
    }
    assert len(texts) == 1, "temperature 0 is greedy"


def test_only_allowed_tokens_come_and_no_bad_word(client: httpx.Client) -> None:
    body = {
        "prompt": "abc",
        "max_tokens": 40,
        "temperature": 1.5,
        "return_token_ids": True,
        "ignore_eos": True,
    }
    allowed = [10, 20, 30]
    for seed in range(3):
        answer = client.post(PATH, json={**body, "seed": seed, "allowed_token_ids": allowed})
        assert set(answer.json()["choices"][0]["token_ids"]) <= set(allowed)
    letters = {"allowed_token_ids": [65, 66], "seed": 3}
    free = client.post(PATH, json={**body, **letters}).json()["choices"][0]["text"]
    word = free[5:8]
    kept = client.post(PATH, json={**body, **letters, "bad_words": [word]}).json()["choices"][0]["text"]
    assert word in free
    assert word not in kept


def test_keys_change_while_the_server_runs(served: ServedProcess, keys: Path, client: httpx.Client) -> None:
    assert client.get("/v1/models").status_code == 200
    keys.write_text("new\n")
    os.kill(served.process.pid, signal.SIGHUP)
    deadline = time.monotonic() + 10
    while client.get("/v1/models").status_code != 401:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert client.get("/v1/models", headers={"authorization": "Bearer new"}).status_code == 200
    assert any("have been read again" in line for line in served.lines)
