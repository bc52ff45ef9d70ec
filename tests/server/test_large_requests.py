"""Huge bodies cost neither the streams that run nor the probes, and never more memory than allowed."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest
from toy_server import FakeEngine, byte_tokenizer, run_server, says, toy_info

from mambad.server.body import MAX_PENDING_BODIES
from mambad.server.tokenizer import TextTokenizer

PATH = "/v1/completions"
JSON = {"content-type": "application/json"}
MIB = 2**20


def unbounded_tokenizer() -> TextTokenizer:
    """Return a tokenizer for which no length is refused before it was encoded."""
    text = byte_tokenizer([("a", "b"), ("c", "d"), ("ab", "cd")])
    text._max_bytes_per_token = None
    return text


@pytest.mark.parametrize(
    "prompt",
    ["abcd efg " * (MIB // 9), [1, 2, 3] * MIB, [[5]] * MIB, ["a"] * MIB],
    ids=["text", "ids", "lists", "texts"],
)
def test_streams_and_probes_go_on_while_huge_prompts_arrive(prompt):
    engine = FakeEngine(says("ab", ends=False), step_s=0.01, info=toy_info(max_model_len=4000))
    body = {"prompt": "p", "max_tokens": 3000, "stream": True}
    raw = orjson.dumps({"prompt": prompt})
    with (
        run_server(engine, unbounded_tokenizer()) as server,
        server.client() as client,
        ThreadPoolExecutor(3) as pool,
        client.stream("POST", PATH, json=body) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        huge = [pool.submit(client.post, PATH, content=raw, headers=JSON) for _ in range(3)]
        waits, probes, last_s = [], [], time.monotonic()
        for line in lines:
            if line:
                now = time.monotonic()
                waits.append(now - last_s)
                last_s = now
                probes.append(client.get("/health").elapsed.total_seconds())
            if all(future.done() for future in huge) and len(waits) > 3:
                break
    assert {future.result().status_code for future in huge} == {400}
    # Generous: this process also makes the requests, and the machine may be busy.
    assert max(waits) < 1.0
    assert max(probes) < 0.5


def test_a_client_that_leaves_while_its_prompt_waits_for_its_turn_is_forgotten():
    with run_server(FakeEngine(info=toy_info(max_model_len=10**7)), unbounded_tokenizer()) as server:
        host, port = server.url.removeprefix("http://").split(":")
        body = b'{"prompt": "' + b"abcd" * MIB + b'"}'
        head = f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        for _ in range(3):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        with server.client() as client:
            assert client.post(PATH, json={"prompt": "p", "max_tokens": 1}).status_code == 200
            assert client.get("/metrics").status_code == 200
    assert len(server.engine.submissions) < 3


def test_all_pending_bodies_together_are_bounded():
    limit = 4096
    with run_server(max_body_bytes=limit) as server, server.client() as client:
        host, port = server.url.removeprefix("http://").split(":")
        head = f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        connections = []
        for _ in range(MAX_PENDING_BODIES):
            connection = socket.create_connection((host, int(port)), timeout=5)
            connection.sendall(f"{head}Content-Length: {limit}\r\n\r\n".encode() + b" " * (limit - 1))
            connections.append(connection)
        time.sleep(0.2)
        answer = client.post(PATH, json={"prompt": "p" * 200})
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        for connection in connections:
            connection.close()
        deadline = time.monotonic() + 5
        while client.post(PATH, json={"prompt": "p" * 200}).status_code != 200:
            assert time.monotonic() < deadline
