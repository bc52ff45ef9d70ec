"""nginx as it comes, buffering on, in front of a server: the same answers, and streams that still stream."""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from environments import MissingError
from outcome import Bench, Outcome
from servers import KEY

CONFIG = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass {url}; }}
  }}
}}
"""
GREEDY = {
    "model": "demo",
    "prompt": "Now is the winter",
    "temperature": 0,
    "max_tokens": 300,
    "ignore_eos": True,
}
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "What news?"}], "temperature": 0}
START_TIMEOUT_S = 10
LONG = 1500
MAX_SHARE_BEFORE_FIRST = 0.5


def nginx(bench: Bench) -> Outcome:
    """Ask through it and directly."""
    program = shutil.which("nginx")
    if program is None:
        raise MissingError("nginx is not installed")
    direct = bench.servers.url("demo")
    headers = {"Authorization": f"Bearer {KEY}"}
    cases = (_same_answers, _same_chat, _stream_is_the_same, _stream_streams, _errors_pass)
    failures = []
    with (
        _running(program, direct, bench.folder / "nginx") as url,
        httpx.Client(headers=headers, timeout=60) as client,
    ):
        for case in cases:
            try:
                case(client, url, direct)
            except (AssertionError, httpx.HTTPError, KeyError, ValueError) as error:
                failures.append(f"{case.__name__}: {error!r}")
    shown = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stderr
    return Outcome(shown.strip().rpartition(" ")[2].replace("/", " "), len(cases), tuple(failures))


def _same_answers(client: httpx.Client, url: str, direct: str) -> None:
    first, second = (client.post(f"{base}/v1/completions", json=GREEDY).json() for base in (url, direct))
    assert first["choices"] == second["choices"]
    assert first["usage"] == second["usage"]
    assert client.get(f"{url}/v1/models").json() == client.get(f"{direct}/v1/models").json()


def _same_chat(client: httpx.Client, url: str, direct: str) -> None:
    first, second = (client.post(f"{base}/v1/chat/completions", json=CHAT).json() for base in (url, direct))
    assert first["choices"] == second["choices"]


def _stream_is_the_same(client: httpx.Client, url: str, direct: str) -> None:
    texts = []
    for base in (url, direct):
        body = client.post(f"{base}/v1/completions", json={**GREEDY, "stream": True}).text
        events = [event.removeprefix("data: ") for event in body.split("\n\n")]
        assert events[-2:] == ["[DONE]", ""], events[-2:]
        texts.append("".join(json.loads(event)["choices"][0]["text"] for event in events[:-2]))
    assert texts[0] == texts[1]


def _stream_streams(client: httpx.Client, url: str, direct: str) -> None:
    """The first event must not wait for the last ones."""
    start = time.monotonic()
    body: dict[str, Any] = {**GREEDY, "max_tokens": LONG, "stream": True}
    with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        times = [time.monotonic() - start for line in answer.iter_lines() if line]
    assert times[0] < MAX_SHARE_BEFORE_FIRST * times[-1], (times[0], times[-1])


def _errors_pass(client: httpx.Client, url: str, direct: str) -> None:
    answer = client.post(f"{url}/v1/completions", json={**GREEDY, "top_p": 0, "stream": True})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "top_p"
    assert client.get(f"{url}/v1/models", headers={"Authorization": "Bearer x"}).status_code == 401


@contextmanager
def _running(program: str, target: str, folder: Path) -> Iterator[str]:
    """Run it in a folder of its own; yields its URL."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    user = "user root;" if os.geteuid() == 0 else ""
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(user=user, folder=folder, port=port, url=target))
    process = subprocess.Popen([program, "-p", str(folder), "-c", str(config)])
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(port):
            assert process.poll() is None, "nginx did not start"
            assert time.monotonic() < deadline, f"nginx did not start within {START_TIMEOUT_S} s"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
