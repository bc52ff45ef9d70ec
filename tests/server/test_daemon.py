"""Start, drain and end of the serving process, with a real HTTP server and an engine of straw."""

import asyncio
import logging
import os
import signal
import socket
import time
from typing import Any

import pytest

from mambad.engine.async_engine import EngineStatus
from mambad.engine.errors import EngineDeadError, LoadError
from mambad.server import daemon as daemon_module
from mambad.server.config import ServerConfig
from mambad.server.daemon import Daemon
from mambad.server.listen import open_sockets

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


class StrawEngine:
    """The part of AsyncEngine that the daemon uses; records what is called."""

    def __init__(self, failure: Exception | None = None, num_streams: int = 0) -> None:
        self.calls: list[str] = []
        self.status = EngineStatus("loading", "weights", time.time(), 0.5)
        self.num_streams = num_streams
        self.may_be_ready = asyncio.Event()
        self.idle = asyncio.Event()
        self._failure = failure

    async def start(self) -> None:
        self.calls.append("start")

    async def wait_ready(self) -> str:
        await self.may_be_ready.wait()
        if self._failure is not None:
            self.set_phase("dead")
            raise self._failure
        self.set_phase("ready")
        return "info"

    def set_phase(self, phase: str) -> None:
        self.status = EngineStatus(phase, "because", time.time())

    def start_draining(self) -> None:
        self.calls.append("start_draining")
        self.set_phase("draining")

    def refuse_new(self) -> None:
        self.calls.append("refuse_new")

    async def drained(self, timeout_s: float) -> int:
        self.calls.append("drained")
        if self.num_streams:
            try:
                await asyncio.wait_for(self.idle.wait(), timeout_s)
            except TimeoutError:
                return self.num_streams
        self.num_streams = 0
        return 0

    def end_all(self, message: str) -> None:
        self.calls.append("end_all")
        self.idle.set()

    async def stop(self, timeout_s: float) -> None:
        self.calls.append("stop")


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """An application that says hello, and takes its time for /slow."""
    if scope["path"] == "/slow":
        await asyncio.sleep(30)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


class Running:
    """A daemon on a free port, and what its start reported."""

    def __init__(self, engine: StrawEngine, *, grace_s: float = 0.0, timeout_s: float = 5.0) -> None:
        self.engine = engine
        self.infos: list[Any] = []
        self._is_ready = asyncio.Event()
        sockets = open_sockets(ServerConfig(port=0))
        self.port = sockets[0].getsockname()[1]
        self.daemon = Daemon(
            engine,  # type: ignore[arg-type]
            answer,
            sockets,
            drain_grace_s=grace_s,
            shutdown_timeout_s=timeout_s,
            on_ready=self._on_ready,
        )
        self.task = asyncio.create_task(self.daemon.run())

    def _on_ready(self, info: Any) -> None:
        self.infos.append(info)
        self._is_ready.set()

    async def fetch(self, path: str = "/") -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            return (await reader.readline()).strip()
        finally:
            writer.close()

    async def until_ready(self) -> None:
        self.engine.may_be_ready.set()
        await self._is_ready.wait()


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(daemon_module, "DEAD_NOTICE_S", 0.2)
    monkeypatch.setattr(daemon_module, "WATCH_INTERVAL_S", 0.02)
    yield
    logging.getLogger("uvicorn.error").setLevel(logging.NOTSET)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


async def test_http_answers_before_the_engine_is_ready():
    running = Running(StrawEngine())
    assert await running.fetch() == b"HTTP/1.1 200 OK"
    assert running.infos == []
    await running.until_ready()
    assert running.infos == ["info"]
    interrupt()
    assert await running.task == 0


async def test_a_signal_drains_in_order_and_leaves_with_0(capsys):
    running = Running(StrawEngine(num_streams=3))
    await running.until_ready()
    interrupt()
    await asyncio.sleep(0.05)
    assert not running.task.done()
    running.engine.idle.set()
    assert await running.task == 0
    assert running.engine.calls == ["start", "start_draining", "refuse_new", "drained", "stop"]
    assert "mambad: draining 3 requests, up to 5 s; Ctrl-C again stops now\n" in capsys.readouterr().out
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", running.port)).close()


async def test_new_work_is_accepted_during_the_grace():
    running = Running(StrawEngine(), grace_s=0.2)
    await running.until_ready()
    interrupt()
    await asyncio.sleep(0.05)
    assert running.engine.status.phase == "draining"
    assert "refuse_new" not in running.engine.calls
    assert await running.fetch() == b"HTTP/1.1 200 OK"
    assert await running.task == 0
    assert "refuse_new" in running.engine.calls


async def test_what_is_left_after_the_timeout_is_ended_and_leaves_with_0():
    running = Running(StrawEngine(num_streams=1), timeout_s=0.1)
    await running.until_ready()
    interrupt()
    assert await running.task == 0
    assert running.engine.calls[-4:] == ["drained", "end_all", "drained", "stop"]


async def test_a_second_signal_stops_now():
    running = Running(StrawEngine(num_streams=1), timeout_s=30)
    await running.until_ready()
    slow = asyncio.create_task(running.fetch("/slow"))
    await asyncio.sleep(0.05)
    interrupt()
    await asyncio.sleep(0.05)
    start_s = time.monotonic()
    interrupt()
    assert await running.task == 1
    assert time.monotonic() - start_s < 2
    assert "end_all" not in running.engine.calls
    slow.cancel()
    await asyncio.wait([slow])


async def test_a_signal_while_loading_stops_at_once():
    running = Running(StrawEngine())
    await running.fetch()
    interrupt()
    assert await running.task == 0
    assert running.engine.calls == ["start", "stop"]
    assert running.infos == []


async def test_a_model_that_can_not_be_loaded_is_raised_after_everything_is_stopped():
    running = Running(StrawEngine(LoadError("no weights")))
    await running.fetch()
    running.engine.may_be_ready.set()
    with pytest.raises(LoadError, match="no weights"):
        await running.task
    assert running.engine.calls[-1] == "stop"


@pytest.mark.parametrize("is_ready", [True, False])
async def test_a_dead_engine_is_reported_for_a_while_and_leaves_with_1(is_ready):
    running = Running(StrawEngine(None if is_ready else EngineDeadError("gone")))
    if is_ready:
        await running.until_ready()
        running.engine.set_phase("dead")
    else:
        running.engine.may_be_ready.set()
    await asyncio.sleep(0.1)
    assert await running.fetch() == b"HTTP/1.1 200 OK"  # the application says 503 by then
    assert await running.task == 1
    assert running.engine.calls[-1] == "stop"
