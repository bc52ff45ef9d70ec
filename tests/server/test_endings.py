"""How requests end otherwise than by themselves: clients that leave or stop reading, faults, time limits."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from toy_server import FakeEngine, run_server, says, wait_until

PATH = "/v1/completions"
ENDINGS = [
    ("timeout", "queue_timeout", 429, "queue_timeout"),
    ("shutdown", "shutdown", 503, "shutdown"),
    ("error", "engine_error", 500, "engine_error"),
    ("error", None, 500, "engine_error"),
    ("cancelled", None, 500, "cancelled"),
]


@contextmanager
def slow_server(step_s=0.02, script=None, **settings):
    engine = FakeEngine(script or says("ab", ends=False), step_s=step_s)
    with run_server(engine, **settings) as server, server.client() as server.http:
        yield server
    assert engine.num_running == 0


def body_of(**changes):
    return {"prompt": "p", "max_tokens": 200, **changes}


def events_of(lines):
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


@pytest.mark.parametrize("extra", [{}, {"n": 3}, {"prompt": ["a", "b"], "n": 2}])
def test_a_client_that_leaves_a_stream_ends_all_its_choices(extra):
    with slow_server() as server:
        engine = server.engine
        with server.http.stream("POST", PATH, json=body_of(stream=True, **extra)) as answer:
            lines = answer.iter_lines()
            next(lines)
            num_choices = len(engine.submissions)
            assert engine.num_running == num_choices == extra.get("n", 1) * len(extra.get("prompt", "p"))
        wait_until(lambda: engine.num_running == 0, 1)
        assert list(engine.aborted.values()) == ["disconnect"] * num_choices


@pytest.mark.parametrize("extra", [{}, {"n": 3}])
def test_a_client_that_does_not_wait_for_a_whole_answer_ends_all_its_choices(extra):
    with slow_server() as server:
        engine = server.engine
        connection = send_raw(server, body_of(**extra))
        wait_until(lambda: engine.num_running == extra.get("n", 1))
        connection.close()
        wait_until(lambda: engine.num_running == 0, 1)
        assert list(engine.aborted.values()) == ["disconnect"] * extra.get("n", 1)
        wait_until(lambda: 'code="499",method="POST"' in server.http.get("/metrics").text)


def send_raw(server, body, rest=b""):
    """Post over a bare socket; returns it."""
    host, port = server.url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content + rest)
    return connection


def test_two_hundred_dropped_streams_leave_nothing_behind():
    with slow_server(step_s=0.001) as server:
        for _ in range(200):
            with send_raw(server, body_of(stream=True)) as connection:
                assert connection.recv(15) == b"HTTP/1.1 200 OK"
        wait_until(lambda: server.engine.num_running == 0)
        assert server.http.post(PATH, json=body_of(max_tokens=2)).status_code == 200


@pytest.mark.parametrize(("reason", "code", "status", "shown"), ENDINGS)
def test_an_ending_of_the_engines_own_is_an_error_event_or_a_status(reason, code, status, shown):
    with slow_server() as server, ThreadPoolExecutor(1) as pool:

        def end():
            server.call(lambda: server.engine.end_all(reason, "because", code))

        with server.http.stream("POST", PATH, json=body_of(stream=True, n=2)) as answer:
            assert answer.status_code == 200
            lines = answer.iter_lines()
            next(lines)
            end()
            events = events_of(lines)
        assert events.pop() == "[DONE]"
        error = json.loads(events.pop())["error"]
        assert (error["message"], error["code"]) == ("because", shown)
        assert all(json.loads(event)["choices"][0]["finish_reason"] is None for event in events)

        future = pool.submit(server.http.post, PATH, json=body_of())
        wait_until(lambda: server.engine.num_running == 1)
        end()
        answer = future.result()
        assert answer.status_code == status
        assert answer.json()["error"]["code"] == shown
        assert ("retry-after" in answer.headers) == (status in (429, 503))


@pytest.mark.parametrize("n", [1, 3])
def test_when_the_engine_dies_streams_end_with_an_error_event_and_the_rest_gets_503(n):
    with slow_server() as server:
        with server.http.stream("POST", PATH, json=body_of(stream=True, n=n)) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.call(server.engine.die)
            events = events_of(lines)
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["error"]["code"] == "engine_dead"
        for is_stream in (True, False):
            answer = server.http.post(PATH, json=body_of(stream=is_stream))
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "5"
            assert answer.json()["error"]["code"] == "engine_dead"


def test_a_full_queue_is_429_before_any_header_of_a_stream():
    with slow_server() as server:
        server.engine.max_requests = 2
        answer = server.http.post(PATH, json=body_of(n=3, stream=True))
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert answer.json()["error"]["code"] == "queue_full"
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert server.engine.submissions == [], "all or nothing"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_request_that_waited_too_long_gets_a_status_and_no_stream(is_streamed):
    with slow_server(step_s=5.0) as server, ThreadPoolExecutor(1) as pool:
        server.engine.admits = False
        answer = pool.submit(server.http.post, PATH, json=body_of(stream=is_streamed, n=2))
        wait_until(lambda: server.engine.num_running == 2)
        server.call(lambda: server.engine.end_all("timeout", "waited 60 s for a slot", "queue_timeout"))
        assert answer.result().status_code == 429
        assert answer.result().headers["retry-after"] == "1"
        assert answer.result().json()["error"]["code"] == "queue_timeout"


def test_a_client_that_leaves_the_queue_ends_all_its_choices():
    with slow_server(step_s=5.0) as server:
        server.engine.admits = False
        connection = send_raw(server, body_of(stream=True, n=2))
        wait_until(lambda: server.engine.num_running == 2)
        connection.close()
        wait_until(lambda: server.engine.num_running == 0, 1)
        assert list(server.engine.aborted.values()) == ["disconnect"] * 2


def test_a_request_that_takes_too_long_is_ended():
    with slow_server(request_timeout_s=0.3) as server:
        answer = server.http.post(PATH, json=body_of())
        assert (answer.status_code, answer.headers["x-should-retry"]) == (408, "false")
        assert answer.json()["error"]["code"] == "timeout"
        events = events_of(server.http.post(PATH, json=body_of(stream=True, n=2)).text.split("\n"))
        assert events[-1] == "[DONE]"
        assert json.loads(events[-2])["error"]["code"] == "timeout"
        assert len(events) > 4
        wait_until(lambda: server.engine.num_running == 0, 1)
        assert set(server.engine.aborted.values()) == {"timeout"}


def test_a_silent_stream_gets_comments_and_a_busy_one_none():
    with slow_server(step_s=0.3, sse_keep_alive_s=0.05) as server:
        text = server.http.post(PATH, json=body_of(stream=True, max_tokens=2)).text
        assert text.count(": keep-alive\n\n") >= 4
        assert text.endswith("data: [DONE]\n\n")
        server.engine.step_s = 0.005
        text = server.http.post(PATH, json=body_of(stream=True, max_tokens=40)).text
        assert "keep-alive" not in text


def test_a_slow_reader_gets_merged_chunks_and_misses_nothing():
    engine = FakeEngine(lambda submission: [1 + i % 256 for i in range(submission.params.max_tokens)])
    engine.info = engine.info.__class__(**{**to_dict(engine.info), "max_model_len": 100_000})
    with run_server(engine) as server:
        body = body_of(stream=True, max_tokens=60_000, return_token_ids=True)
        connection = send_raw(server, body)
        wait_until(lambda: len(engine.submissions) == 1)
        wait_until(lambda: engine.num_running == 0, 10)  # the engine is not held up
        data = b""
        while not data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            data += connection.recv(1 << 16)
        connection.close()
    events = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b'data: {"')]
    ids = [i for event in events for i in event["choices"][0]["token_ids"]]
    assert ids == [1 + i % 256 for i in range(60_000)]
    assert max(len(event["choices"][0]["token_ids"]) for event in events) > 1000


def to_dict(info):
    return {name: getattr(info, name) for name in info.__struct_fields__}


def test_a_reader_that_takes_nothing_is_dropped(caplog):
    engine = FakeEngine(says("ab" * 500, ends=False), step_s=0.001)
    engine.burst = 500
    engine.info = engine.info.__class__(**{**to_dict(engine.info), "max_model_len": 10**7})
    with run_server(engine, stall_timeout_s=0.4, send_buffer_bytes=4096) as server:
        start_s = time.monotonic()
        with send_raw(server, body_of(stream=True, max_tokens=5 * 10**6)) as connection:
            wait_until(lambda: engine.num_running == 1)
            wait_until(lambda: engine.num_running == 0)
            assert time.monotonic() - start_s > 0.4
            assert list(engine.aborted.values()) == ["disconnect"]
            assert not read_to_end(connection).endswith(b"\r\n0\r\n\r\n"), "dropped, not ended"
    assert caplog.text == ""


def test_a_connection_serves_the_next_request_after_the_end_of_a_stream():
    with slow_server(step_s=0) as server:
        text = send_and_read(server, [body_of(stream=True, max_tokens=2), body_of(max_tokens=2)])
        assert text.count("HTTP/1.1 200 OK") == 2
        assert text.index("[DONE]") < text.index('"finish_reason":"length","logprobs"')


def send_and_read(server, bodies):
    """Pipeline two requests on one connection; returns all that comes back."""
    content = json.dumps(bodies[1]).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    rest = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
    with send_raw(server, bodies[0], rest) as connection:
        return read_to_end(connection).decode()


def read_to_end(connection):
    """Return all that comes until the server closes the connection."""
    chunks = []
    while chunk := connection.recv(1 << 20):
        chunks.append(chunk)
    return b"".join(chunks)
