"""`mambad serve` as a process: what it prints, how it ends, and what it refuses to start with."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from toy_process import ServedProcess, serve, served_model

FLAGS = ("--load-format", "dummy", "--max-num-seqs", "4", "--threads", "1")


def refuse(*words: str) -> str:
    """Run `mambad serve WORDS`, which must end with exit code 2 and one line; returns the line."""
    command = [sys.executable, "-m", "mambad", "serve", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("mambad: error: ")]
    assert (done.returncode, len(lines)) == (2, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert "listening" not in done.stdout
    return lines[0]


def complete(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mambad", "complete", "To be", "--url", url, "--seed", "1", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def streaming(served: ServedProcess) -> Iterator[Callable[[], str]]:
    """Keep a long stream open; yields a function that waits for its end and returns all of it."""
    body = {"prompt": "x", "max_tokens": 2000, "stream": True, "ignore_eos": True}
    request = urllib.request.Request(
        f"{served.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        first = answer.readline()
        yield lambda: (first + answer.read()).decode()


def test_start_up_prints_the_plan_the_address_and_a_command_that_works():
    with serve(served_model(), *FLAGS) as served:
        first = next(i for i, line in enumerate(served.lines) if line.startswith("mambad: listening on "))
        plan = [line.split()[0] for line in served.lines[:first] if re.match(r"[a-z]+  ", line)]
        assert {"model", "dtype", "memory", "slots", "length", "kernels", "threads"} <= set(plan)
        done = complete(served.url, "--max-tokens", "5")
        assert (done.returncode, done.stderr) == (0, "")
        (command,) = [line for line in served.lines[first:] if line.startswith("try: curl ")]
        assert f"{served.url}/v1/completions" in command
        assert json.loads(re.search(r"-d '(.*)'$", command)[1])["model"] == "toy-granite"


def test_sigterm_lets_a_running_request_finish():
    with serve(served_model(), *FLAGS) as served:
        done: list[str] = []
        ask = lambda: done.append(complete(served.url, "--max-tokens", "1500").stdout)  # noqa: E731
        thread = threading.Thread(target=ask)
        thread.start()
        wait_until_running(served)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(30) == 0
        thread.join()
        assert done[0].strip()
        assert "mambad: draining 1 requests, up to 30 s; Ctrl-C again stops now" in served.lines


def test_what_runs_past_the_shutdown_timeout_ends_with_an_error_event():
    with serve(served_model(), *FLAGS, "--shutdown-timeout", "100ms") as served, streaming(served) as rest:
        served.process.send_signal(signal.SIGINT)
        text = rest()
        assert served.process.wait(30) == 0
    events = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["error"]["code"] == "shutdown"
    assert '"finish_reason":"' not in text.replace(" ", "")


def test_a_second_signal_stops_now_and_takes_the_engine_along():
    with serve(served_model(), *FLAGS) as served, streaming(served):
        engine = served.engine_pid()
        served.process.send_signal(signal.SIGINT)
        wait_until(lambda: any("draining 1 requests" in line for line in served.lines))
        start_s = time.monotonic()
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(30) == 1
        assert time.monotonic() - start_s < 5
        assert not Path(f"/proc/{engine}").exists()
        assert not any("Traceback" in line for line in served.lines)


def test_the_server_answers_on_a_unix_socket_and_removes_it(tmp_path):
    path = tmp_path / "mambad.sock"
    command = [sys.executable, "-m", "mambad", "serve", str(served_model()), *FLAGS, "--uds", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any(line == f"mambad: listening on unix:{path}\n" for line in lines)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /state HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(30) == 0
    assert not path.exists()


def test_a_used_port_is_reported_before_anything_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # The model does not exist: the port comes first.
        line = refuse("no/such-model", "--port", str(port))
    assert f"--port {port} is in use on 127.0.0.1" in line


def test_a_model_that_can_not_be_served_is_one_line(tmp_path):
    assert "has no tokenizer.json" in refuse(str(tmp_path), "--port", "0")
    words = (str(tmp_path), "--port", "0", "--tokenizer", str(served_model()))
    assert "holds no model: config.json is missing" in refuse(*words)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    assert "llama" in refuse(*words)


def test_too_little_memory_names_the_smallest_that_works():
    line = refuse(str(served_model()), *FLAGS, "--port", "0", "--kv-cache-memory-bytes", "1k")
    needed = int(re.search(r"--kv-cache-memory-bytes to at least (\d+)", line)[1])
    with serve(served_model(), *FLAGS, "--kv-cache-memory-bytes", str(needed)) as served:
        assert any(line.startswith("slots     1 of ") for line in served.lines)


def test_a_server_that_is_open_to_all_warns_and_one_with_a_key_does_not():
    with serve(served_model(), *FLAGS, "--host", "0.0.0.0") as served:
        assert any("is open to everybody who can reach it" in line for line in served.lines)
    environment = {"MAMBAD_API_KEY": "secret-key"}
    with serve(served_model(), *FLAGS, "--host", "0.0.0.0", environment=environment) as served:
        assert complete(served.url, "--max-tokens", "2").stderr.endswith("Incorrect API key provided.\n")
    assert not any("is open to everybody" in line or "secret-key" in line for line in served.lines)


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_until_running(served: ServedProcess) -> None:
    def is_running() -> bool:
        with urllib.request.urlopen(f"{served.url}/metrics") as answer:
            return b'mambad_requests_running{engine="0",model_name="toy-granite"} 1.0' in answer.read()

    wait_until(is_running)
