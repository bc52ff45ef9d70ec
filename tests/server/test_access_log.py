"""One log line a request."""

import asyncio
import json
import logging
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from toy_server import FakeEngine, run_server, says, wait_until

from mambad.engine.logs import JsonFormatter, TextFormatter
from mambad.server.access_log import AccessLog
from mambad.server.request_record import add_request_fields

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def well(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 201, "headers": [(b"x-request-id", b"r1")]})
    await send({"type": "http.response.body", "body": b""})


async def badly(scope: Any, receive: Any, send: Any) -> None:
    raise RuntimeError("broken")


async def not_at_all(scope: Any, receive: Any, send: Any) -> None:
    raise asyncio.CancelledError


def request(app: Any, path: str = "/v1/models", kind: str = "http") -> list[Any]:
    """Send one request through the log; returns the messages that came back."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": kind, "method": "GET", "path": path, "headers": [], "client": ("10.0.0.9", 1234)}
    asyncio.run(AccessLog(app, ("/health",))(scope, None, send))  # type: ignore[arg-type]
    return sent


@pytest.fixture(autouse=True)
def _log_everything(caplog):
    caplog.set_level("INFO", "mambad")


def test_a_request_leaves_one_line_with_its_facts(caplog):
    assert [message["type"] for message in request(well)] == ["http.response.start", "http.response.body"]
    (line,) = caplog.records
    assert line.getMessage() == "GET /v1/models"
    assert (line.status, line.client, line.request_id) == (201, "10.0.0.9", "r1")
    assert 0 <= line.duration_s < 5


def test_quiet_paths_and_other_protocols_leave_none(caplog):
    assert request(well, "/health")
    assert request(well, kind="websocket")
    assert caplog.records == []


def test_a_line_break_in_a_path_forges_no_line(caplog):
    request(well, "/x\nGET /forged")
    assert caplog.records[0].getMessage() == "GET /x%0AGET%20/forged"


@pytest.mark.parametrize(("app", "error"), [(badly, RuntimeError), (not_at_all, asyncio.CancelledError)])
def test_a_request_without_an_answer_is_logged_and_its_error_goes_on(caplog, app, error):
    with pytest.raises(error):
        request(app)
    assert caplog.records[0].status == 499


def lines(caplog, path="/v1/completions"):
    return [line for line in caplog.records if line.getMessage() == f"POST {path}"]


@contextmanager
def logged(engine=None, **settings):
    with run_server(engine, wrap=lambda app: AccessLog(app, ()), **settings) as server:
        yield server


def test_a_request_for_text_tells_its_tokens_and_times(caplog):
    with logged(FakeEngine(says("abc"))) as server, server.client() as client:
        body = {"prompt": "hello", "n": 2, "max_tokens": 9, "model": "org/toy"}
        answer = client.post("/v1/completions", json=body, headers={"traceparent": TRACEPARENT})
    (line,) = lines(caplog)
    assert (line.model, line.engine, line.status) == ("org/toy", 0, 200)
    assert (line.prompt_tokens, line.cached_tokens, line.completion_tokens) == (5, 0, 8)
    assert (line.finish_reason, line.error_code, line.queue_s) == ("stop", None, 0.01)
    assert 0 < line.ttft_s <= line.duration_s + 0.001
    assert (line.request_id, line.trace_id) == (answer.headers["x-request-id"], TRACEPARENT[3:35])
    assert (line.client, line.prompt) == ("127.0.0.1", None)


def test_a_choice_that_ends_at_a_stop_string_has_its_queue_time_too(caplog):
    with logged(FakeEngine(says("abcdef", ends=False))) as server, server.client() as client:
        client.post("/v1/completions", json={"prompt": "x", "stop": "cd", "max_tokens": 50})
        wait_until(lambda: len(lines(caplog)) == 1)
    assert lines(caplog)[0].queue_s == 0.01


@pytest.mark.parametrize(
    ("reason", "code", "finish"),
    [("error", "nonfinite_logits", "error"), ("shutdown", None, "shutdown"), ("timeout", None, "timeout")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_how_a_request_failed_is_told_even_within_a_stream(caplog, stream, reason, code, finish):
    engine = FakeEngine(step_s=0.02)
    with logged(engine) as server, server.client() as client:
        server.call(lambda: server.loop.call_later(0.1, engine.end_all, reason, "no", code))
        body = {"prompt": "x", "max_tokens": 200, "stream": stream}
        told = client.post("/v1/completions", json=body).text
    (line,) = lines(caplog)
    assert line.finish_reason == finish
    assert f'"{line.error_code}"' in told


def test_a_refused_request_tells_why(caplog):
    with logged(api_keys=("k",)) as server, server.client() as client:
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 401
        assert client.post("/nowhere", headers={"authorization": "Bearer k"}).status_code == 404
    assert [(line.status, line.error_code) for line in lines(caplog)] == [(401, "invalid_api_key")]
    assert lines(caplog, "/nowhere")[0].error_code == "not_found"


def test_a_client_that_leaves_within_a_stream(caplog):
    engine = FakeEngine(step_s=0.02)
    with logged(engine) as server:
        body = {"prompt": "x", "max_tokens": 200, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
            next(response.iter_lines())
        wait_until(lambda: len(lines(caplog)) == 1)
    (line,) = lines(caplog)
    assert (line.status, line.finish_reason) == (200, "disconnect")


def test_prompts_are_logged_only_where_that_is_asked_for(caplog):
    secret = "a prompt that nobody else may read"
    body = {"prompt": secret, "max_tokens": 2, "stop": [secret], "user": secret}
    for is_on in (False, True):
        caplog.clear()
        with logged(log_prompts=is_on) as server, server.client() as client:
            client.post("/v1/completions", json=body)
            client.post("/v1/completions", json=body | {"temperature": secret})
        text = "".join(TextFormatter().format(line) + JsonFormatter().format(line) for line in caplog.records)
        assert (secret in text) is is_on
    assert lines(caplog)[0].prompt == secret


def test_nothing_that_a_client_sends_forges_a_line_or_reaches_the_terminal(caplog):
    evil = "x\n2026-01-01 00:00:00 INFO    forged\x1b[2J\u2028\u202e"
    header = "x\x1b[2Jstatus=200"
    with logged(log_prompts=True) as server, server.client() as client:
        client.post("/v1/completions", json={"prompt": evil, "model": evil})
        client.post("/v1/completions", json={"prompt": evil, "request_id": "a b=c"})
        client.post("/v1/completions", json={"prompt": evil}, headers={"x-request-id": header})
        client.post("/%0a%1b[2J", headers={"x-request-id": 'a="b'})
    assert len(caplog.records) >= 4
    for line in caplog.records:
        text, record = TextFormatter().format(line), JsonFormatter().format(line)
        assert "\n" not in text + record
        assert (text + record).isprintable()
        json.loads(record)


def test_lines_of_a_requests_task_carry_its_ids(caplog):
    """A failure that nobody foresaw is logged within the request; its line tells which request it was."""

    async def broken(scope, receive, send):
        scope["state"]["record"].request_id = "r9"
        logging.getLogger("mambad.inner").warning("inner")
        await well(scope, receive, send)

    handler = caplog.handler
    handler.addFilter(add_request_fields)
    try:
        request(broken)
        logging.getLogger("mambad.inner").warning("outer")
    finally:
        handler.removeFilter(add_request_fields)
    inner, _, outer = caplog.records
    assert (inner.request_id, hasattr(outer, "request_id")) == ("r9", False)
