"""Two data-parallel ranks give the answers of one, alone or in lockstep, whoever is idle."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from toy_process import ServedProcess, metric, serve, served_model, wait_until_all_slots_are_free

FLAGS = ("--load-format", "dummy", "--max-num-seqs", "3", "--threads", "1", "--enable-fault-injection")


def bodies() -> list[dict[str, object]]:
    return [
        {"prompt": [7 + index] * (1 + 13 * index), "max_tokens": 5 + 9 * (index % 5), "seed": index}
        for index in range(24)
    ]


def ask_all(url: str) -> list[str]:
    texts = [""] * 24

    def ask(index: int, body: dict[str, object]) -> None:
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        texts[index] = answer.json()["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=item) for item in enumerate(bodies())]
    for thread in threads:
        thread.start()
        time.sleep(0.01)
    for thread in threads:
        thread.join()
    return texts


@pytest.fixture(scope="module")
def answers_of_one_rank() -> list[str]:
    with serve(served_model(), *FLAGS) as served:
        return ask_all(served.url)


@pytest.fixture(scope="module", params=[(), ("--data-parallel-lockstep",)], ids=["alone", "lockstep"])
def served(request: pytest.FixtureRequest) -> Iterator[ServedProcess]:
    with serve(served_model(), *FLAGS, "-dp", "2", *request.param) as process:
        yield process


def test_two_ranks_with_poisoned_free_rows_answer_as_one(
    served: ServedProcess, answers_of_one_rank: list[str]
) -> None:
    for _ in range(3):
        for engine in (0, 1):
            order = {"name": "poison_free", "engine": engine}
            assert httpx.post(f"{served.url}/debug/faults", json=order).json()["is_ordered"]
        assert ask_all(served.url) == answers_of_one_rank
    wait_until_all_slots_are_free(served.url)
    text = httpx.get(f"{served.url}/metrics").text
    for engine in ("0", "1"):
        assert metric(text, "mambad_generation_tokens_total", engine=engine) > 0
        assert metric(text, "mambad_state_slots", engine=engine) == 3


def test_a_request_goes_to_the_rank_that_it_names(served: ServedProcess) -> None:
    def tokens() -> list[float]:
        wait_until_all_slots_are_free(served.url)
        text = httpx.get(f"{served.url}/metrics").text
        return [metric(text, "mambad_generation_tokens_total", engine=engine) for engine in ("0", "1")]

    before = tokens()
    body = {"prompt": "x", "max_tokens": 50, "ignore_eos": True}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, headers={"X-data-parallel-rank": "1"})
    assert answer.status_code == 200
    assert tokens() == [before[0], before[1] + 50]


def test_in_lockstep_the_idle_rank_computes_padding_and_then_rests(served: ServedProcess) -> None:
    is_in_lockstep = "--data-parallel-lockstep" in served.process.args

    def dummies() -> float:
        text = httpx.get(f"{served.url}/metrics").text
        return metric(text, "mambad_engine_step_duration_seconds_count", engine="0", kind="dummy")

    before = dummies()
    body = {"prompt": "x", "max_tokens": 60, "ignore_eos": True}
    httpx.post(f"{served.url}/v1/completions", json=body, headers={"X-data-parallel-rank": "1"})
    time.sleep(1.2)
    after = dummies()
    assert (after - before >= 60) if is_in_lockstep else after == before
    time.sleep(1.2)
    assert dummies() == after


def test_when_one_rank_dies_the_server_says_so_and_leaves() -> None:
    with serve(served_model(), *FLAGS, "-dp", "2", "--data-parallel-lockstep") as served:
        pids = served.engine_pids()
        assert len(pids) == 2
        os.kill(pids[1], signal.SIGKILL)
        deadline = time.monotonic() + 1
        while httpx.get(f"{served.url}/live").status_code == 200:
            assert time.monotonic() < deadline
        assert served.process.wait(10) == 1
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
