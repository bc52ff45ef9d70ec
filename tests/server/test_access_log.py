"""One log line a request."""

import asyncio
from typing import Any

import pytest

from mambad.server.access_log import AccessLog


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

    scope = {"type": kind, "method": "GET", "path": path, "client": ("10.0.0.9", 1234)}
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
