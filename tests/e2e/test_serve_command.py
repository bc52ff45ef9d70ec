"""`mambad serve` as a process: what it prints, how it ends, and what it refuses to start with."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from toy_process import ServedProcess, serve, served_model

FLAGS = ("--load-format", "dummy", "--max-num-seqs", "4", "--threads", "1")
SLOW = {"MAMBAD_KERNELS": "reference"}  # so that 2,000 tokens still run when a signal comes


def refuse(*words: str) -> str:
    """Run `mambad serve WORDS`, which must end with exit code 2 and one line; returns the line."""
    command = [sys.executable, "-m", "mambad", "serve", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("mambad: error: ")]
    assert (done.returncode, len(lines)) == (2, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert "listening" not in done.stdout
    return lines[0]


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


def test_a_server_says_how_to_reach_it_and_lets_a_running_request_finish_at_the_end():
    with serve(served_model(), *FLAGS, environment=SLOW) as served:
        first = next(i for i, line in enumerate(served.lines) if line.startswith("mambad: listening on "))
        plan = [line.split()[0] for line in served.lines[:first] if re.match(r"[a-z]+  ", line)]
        assert {"model", "dtype", "memory", "slots", "length", "kernels", "threads"} <= set(plan)
        wait_until(lambda: served.lines[-1].startswith("try: curl "))
        assert f"{served.url}/v1/completions" in served.lines[-1]
        assert json.loads(re.search(r"-d '(.*)'$", served.lines[-1])[1])["model"] == "toy-granite"

        with streaming(served) as rest:
            served.process.send_signal(signal.SIGTERM)
            text = rest()
            assert served.process.wait(30) == 0
        assert '"finish_reason":"length"' in text
        assert text.endswith("data: [DONE]\n\n")
        assert "mambad: draining 1 requests, up to 30 s; Ctrl-C again stops now" in served.lines


def test_what_runs_past_the_shutdown_timeout_ends_with_an_error_event():
    flags = (*FLAGS, "--shutdown-timeout", "100ms")
    with serve(served_model(), *flags, environment=SLOW) as served, streaming(served) as rest:
        served.process.send_signal(signal.SIGINT)
        text = rest()
        assert served.process.wait(30) == 0
    events = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["error"]["code"] == "shutdown"
    assert '"finish_reason":"' not in text


def test_a_second_signal_stops_now_and_takes_the_engine_along():
    flags = (*FLAGS, "--host", "0.0.0.0")
    with serve(served_model(), *flags, environment=SLOW) as served, streaming(served):
        assert any("is open to everybody who can reach it" in line for line in served.lines)
        engine = served.engine_pid()
        served.process.send_signal(signal.SIGINT)
        wait_until(lambda: any("draining 1 requests" in line for line in served.lines))
        start_s = time.monotonic()
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(30) == 1
        assert time.monotonic() - start_s < 5
        assert not Path(f"/proc/{engine}").exists()
        assert not any("Traceback" in line for line in served.lines)


def test_a_unix_socket_is_served_behind_a_key_and_removed_at_the_end(tmp_path):
    path = tmp_path / "mambad.sock"
    command = [sys.executable, "-m", "mambad", "serve", str(served_model()), *FLAGS, "--uds", str(path)]
    environment = {**os.environ, "MAMBAD_API_KEY": "secret-key"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("try: "):
                break
        assert f"mambad: listening on unix:{path}\n" in lines
        assert f"curl -N --unix-socket {path} http://localhost/v1/completions" in lines[-1]
        assert ask(path, "") == b"HTTP/1.1 401"
        assert ask(path, "Authorization: Bearer secret-key\r\n") == b"HTTP/1.1 200"
        process.send_signal(signal.SIGTERM)
        lines += process.stdout
        assert process.wait(30) == 0
    assert not path.exists()
    assert not any("secret-key" in line or "open to everybody" in line for line in lines)


def test_a_used_port_is_reported_before_anything_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # The model does not exist: the port comes first.
        line = refuse("no/such-model", "--port", str(port))
    assert f"--port {port} is in use on 127.0.0.1" in line


def test_a_model_that_can_not_be_served_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    assert "llama" in refuse(str(tmp_path), "--port", "0", "--tokenizer", str(served_model()))


def test_too_little_memory_names_the_smallest_that_works():
    line = refuse(str(served_model()), *FLAGS, "--port", "0", "--kv-cache-memory-bytes", "1k")
    assert re.search(r"--kv-cache-memory-bytes to at least \d+$", line)


def ask(path: Path, headers: str) -> bytes:
    """Return the start of the answer to GET /v1/models on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(f"GET /v1/models HTTP/1.1\r\nHost: x\r\n{headers}Connection: close\r\n\r\n".encode())
        return client.recv(12)


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
