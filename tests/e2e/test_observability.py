"""Logs and traces of a real server: what the engine measured, one format for all, a level that can change."""

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from toy_collector import Collector, attributes, run_collector
from toy_process import ServedProcess, serve, served_model

FLAGS = ("--load-format", "dummy", "--max-num-seqs", "2", "--threads", "1", "--max-num-batched-tokens", "64")
KEY = "sk-a-key-that-stays-secret"
PROMPT = "a prompt that stays secret"
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def collector():
    with run_collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text("log_level: info\n")
    return path


@pytest.fixture(scope="module")
def served(collector: Collector, config: Path):
    flags = ("--log-format", "json", "--config", str(config), "--enable-fault-injection")
    traces = ("--otlp-traces-endpoint", collector.url.replace("//", "//me:pass@"))
    environment = {"MAMBAD_API_KEY": KEY, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with serve(served_model(), *FLAGS, *flags, *traces, environment=environment) as running:
        yield running


@pytest.fixture
def client(served: ServedProcess):
    with httpx.Client(base_url=served.url, timeout=30, headers={"authorization": f"Bearer {KEY}"}) as client:
        yield client


def logged(served: ServedProcess) -> list[dict[str, Any]]:
    """Return the log so far; what is not JSON is what `serve` prints for people."""
    return [json.loads(line) for line in list(served.lines) if line.startswith("{")]


def wait_for(served: ServedProcess, is_meant: Any) -> dict[str, Any]:
    deadline = time.monotonic() + 10
    while True:
        for line in logged(served):
            if is_meant(line):
                return line
        assert time.monotonic() < deadline, "\n".join(served.lines)
        time.sleep(0.02)


def test_line_and_span_tell_what_the_engine_measured(
    served: ServedProcess, client: httpx.Client, collector: Collector
) -> None:
    """Three requests for two places: the last one waits, and everything says so."""
    before_ns = time.time_ns()
    body = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True, "n": 3}
    answer = client.post(PATH, json=body)
    after_ns = time.time_ns()
    line = wait_for(served, lambda line: line.get("request_id") == answer.headers["x-request-id"])
    assert (line["event"], line["status"], line["finish_reason"]) == (f"POST {PATH}", 200, "length")
    assert (line["prompt_tokens"], line["completion_tokens"]) == (len(PROMPT), 120)
    assert 0 < line["queue_s"] < line["duration_s"]
    assert 0 < line["ttft_s"] < line["duration_s"]

    deadline = time.monotonic() + 10
    while not collector.spans():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (span,) = collector.spans()
    assert span.trace_id.hex() == line["trace_id"]
    assert before_ns - 5e6 < span.start_time_unix_nano < span.end_time_unix_nano < after_ns + 5e6
    by_choice = [span.events[i : i + 3] for i in (0, 3, 6)]
    for events in by_choice:
        assert [event.name for event in events] == ["queue", "prefill", "decode"]
        times = [event.time_unix_nano for event in events]
        assert span.start_time_unix_nano - 5e6 < times[0] <= times[1] <= times[2] < span.end_time_unix_nano
        ends = [event.time_unix_nano + attributes(event)["mambad.duration"] * 1e9 for event in events]
        assert ends[:2] == pytest.approx(times[1:], abs=2000)
        assert ends[2] < span.end_time_unix_nano + 5e6
    queued = [attributes(events[0])["mambad.duration"] for events in by_choice]
    assert max(queued) == queued[2] == pytest.approx(line["queue_s"], abs=1e-4)
    assert by_choice[2][1].time_unix_nano > by_choice[0][2].time_unix_nano, "it waited for another's end"


def test_what_is_no_http_is_logged_in_the_same_form(served: ServedProcess) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"\x1b[2J\nnonsense\r\n\r\n")
        assert b"400" in connection.recv(1000)
    line = wait_for(served, lambda line: line["logger"].startswith("uvicorn"))
    assert line["level"] == "warning"


def test_a_level_that_is_read_again_counts_in_every_process(
    served: ServedProcess, client: httpx.Client, config: Path
) -> None:
    """The engine warns of every order of a fault: not while only errors are asked for."""

    def order_fault() -> None:
        body = {"name": "slow_step", "times": 1, "ms": 1}
        assert client.post("/debug/faults", json=body).status_code == 200

    def faults() -> int:
        return sum(line["logger"] == "mambad.engine.worker" for line in logged(served))

    def lines_of(path: str) -> int:
        return sum(line["event"] == f"POST {path}" for line in logged(served))

    config.write_text("log_level: error\n")
    os.kill(served.process.pid, signal.SIGHUP)
    time.sleep(0.5)
    num_faults, num_lines = faults(), lines_of("/debug/faults")
    order_fault()
    config.write_text("log_level: info\n")
    os.kill(served.process.pid, signal.SIGHUP)
    wait_for(served, lambda line: "have been read again" in line["event"])
    assert (faults(), lines_of("/debug/faults")) == (num_faults, num_lines)
    deadline = time.monotonic() + 10
    while faults() == num_faults:
        order_fault()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_secrets_are_nowhere(served: ServedProcess, client: httpx.Client, collector: Collector) -> None:
    """After all that came before."""
    client.get(f"/{KEY}", headers={"x-request-id": KEY})
    client.post(PATH, json={"prompt": "x"}, headers={"authorization": "Bearer wrong-secret-key"})
    wait_for(served, lambda line: line["event"].startswith("GET /sk-") and line["status"] == 404)
    text = "\n".join(served.lines) + "".join(str(request) for request in collector.requests())
    for secret in (KEY, "wrong-secret-key", "me:pass", PROMPT):
        assert secret not in text
    assert "otlp_traces_endpoint=http://***@" in text


def test_the_last_requests_are_told_of_before_the_end(
    served: ServedProcess, client: httpx.Client, collector: Collector
) -> None:
    answer = client.post(PATH, json={"prompt": "last", "max_tokens": 2})
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(15) == 0
    request_id = answer.headers["x-request-id"]
    assert request_id in [attributes(span)["mambad.request.id"] for span in collector.spans()]
    assert request_id in [line.get("request_id") for line in logged(served)]
