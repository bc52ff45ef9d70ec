"""Faults on demand in a served model: what breaks, who is told, and that the rest goes on."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
from toy_process import ServedProcess, metric, serve, served_model, wait_until_all_slots_are_free

FLAGS = ("--load-format", "dummy", "--max-num-seqs", "4", "--threads", "1", "--enable-fault-injection")
BODY = {"prompt": "Once upon a time", "max_tokens": 12, "seed": 5, "ignore_eos": True}
LONG = {**BODY, "max_tokens": 1900, "stream": True}


@contextmanager
def a_client(served: ServedProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def served() -> Iterator[ServedProcess]:
    with serve(served_model(), *FLAGS) as process:
        yield process


@pytest.fixture
def client(served: ServedProcess) -> Iterator[httpx.Client]:
    with a_client(served) as made:
        yield made
        wait_until_all_slots_are_free(served.url)


def order(client: httpx.Client, name: str, **options: int) -> None:
    answer = client.post("/debug/faults", json={"name": name, **options})
    assert answer.json() == {"name": name, "is_ordered": True}


def text_of(client: httpx.Client, **changes: object) -> str:
    answer = client.post("/v1/completions", json={**BODY, **changes})
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> float:
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() - start_s < timeout_s, "it never happened"
        time.sleep(0.02)
    return time.monotonic() - start_s


def test_a_lost_slot_is_counted_shown_logged_and_reclaimed(
    served: ServedProcess, client: httpx.Client
) -> None:
    seen: list[str] = []

    def has_leaked() -> bool:
        seen.append(client.get("/metrics").text)
        return metric(seen[-1], "mambad_state_slots_leaked_total") == 1

    order(client, "leak_slot")
    text_of(client)
    until(has_leaked)
    assert metric(seen[-1], "mambad_state_slots", state="leaked") == 1
    assert metric(seen[-1], "mambad_state_slots") == 4
    until(lambda: metric(client.get("/metrics").text, "mambad_state_slots_reclaimed_total") == 1)
    until(lambda: metric(client.get("/metrics").text, "mambad_state_slots", state="leaked") == 0)
    assert any("leaked; its last owner was request" in line for line in served.lines)
    assert client.get("/state").json()["engines"][0]["last_leak"]["kind"] == "slot"


def test_a_failing_step_ends_its_requests_and_the_next_one_is_right(client: httpx.Client) -> None:
    right = text_of(client)
    order(client, "fail_step")
    answer = client.post("/v1/completions", json=BODY)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "engine_error"
    assert text_of(client) == right
    order(client, "fail_step")
    with client.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as stream:
        lines = [line for line in stream.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2][6:])["error"]["code"] == "engine_error"
    assert text_of(client) == right


def test_logits_that_are_not_finite_fail_their_request_only(client: httpx.Client) -> None:
    neighbours = [{**BODY, "seed": seed, "max_tokens": 1500} for seed in range(3)]
    right = [client.post("/v1/completions", json=body).json()["choices"][0]["text"] for body in neighbours]
    before = metric(client.get("/metrics").text, "mambad_requests_nonfinite_total")
    got: dict[int, httpx.Response] = {}

    def ask(index: int) -> None:
        got[index] = httpx.post(f"{client.base_url}/v1/completions", json=neighbours[index], timeout=30)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: client.get("/state").json()["engines"][0]["requests"]["running"] >= 2)
    order(client, "nan_logits")
    for thread in threads:
        thread.join()
    failed = [index for index in range(3) if got[index].status_code == 500]
    assert len(failed) == 1
    assert got[failed[0]].json()["error"]["code"] == "nonfinite_logits"
    for index in set(range(3)) - set(failed):
        assert got[index].json()["choices"][0]["text"] == right[index]
    until(lambda: metric(client.get("/metrics").text, "mambad_requests_nonfinite_total") == before + 1)


def test_nan_in_everything_that_is_free_changes_no_answer(client: httpx.Client) -> None:
    right = [text_of(client, prompt=prompt, max_tokens=40) for prompt in ("a", "b" * 200, "c" * 65)]
    order(client, "poison_free")
    got = [text_of(client, prompt=prompt, max_tokens=40) for prompt in ("a", "b" * 200, "c" * 65)]
    assert got == right


def test_a_slow_step_is_not_mistaken_for_a_hang() -> None:
    with serve(served_model(), *FLAGS, "--engine-stall-timeout", "1.5") as served, a_client(served) as client:
        right = text_of(client)
        order(client, "slow_step", ms=3000)
        start_s = time.monotonic()
        assert text_of(client) == right
        assert time.monotonic() - start_s >= 3
        assert client.get("/live").status_code == 200


def kill_by_order(served: ServedProcess, client: httpx.Client) -> None:
    order(client, "kill_engine")


def kill_from_outside(served: ServedProcess, client: httpx.Client) -> None:
    os.kill(served.engine_pid(), signal.SIGKILL)


def hang_by_order(served: ServedProcess, client: httpx.Client) -> None:
    order(client, "hang_engine")


def stop_from_outside(served: ServedProcess, client: httpx.Client) -> None:
    os.kill(served.engine_pid(), signal.SIGSTOP)


@pytest.mark.parametrize("end", [kill_by_order, kill_from_outside, hang_by_order, stop_from_outside])
def test_a_dead_or_hanging_engine_turns_health_red_and_ends_every_stream(
    end: Callable[[ServedProcess, httpx.Client], None],
) -> None:
    with serve(served_model(), *FLAGS, "--engine-stall-timeout", "1") as served, a_client(served) as client:
        engine_pid = served.engine_pid()
        with client.stream("POST", "/v1/completions", json=LONG) as stream:
            lines = stream.iter_lines()
            next(lines)
            end(served, client)
            took_s = until(lambda: client.get("/live").status_code == 503)
            assert took_s < (1.0 if end in (kill_by_order, kill_from_outside) else 3.0)
            last = [line for line in lines if line][-2:]
        assert json.loads(last[0][6:])["error"]["code"] == "engine_dead"
        assert last[1] == "data: [DONE]"
        for path in ("/ready", "/health", "/v1/models"):
            assert client.get(path).status_code == 503
        answer = client.post("/v1/completions", json=BODY)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_dead"
        assert served.process.wait(10) == 1
        assert not os.path.exists(f"/proc/{engine_pid}")
