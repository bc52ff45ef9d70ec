"""The life of the serving process: HTTP first, engine beside it, drain on a signal, exit code at the end.

Owns the signal handlers and the order of start and stop. What the paths answer meanwhile is the
application's business, told from `engine.status`.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from mambad.engine.async_engine import AsyncEngine
from mambad.engine.errors import EngineDeadError
from mambad.engine.messages import EngineInfo
from mambad.server.cli_output import announce_draining, show_progress
from mambad.server.protocol import HttpProtocol

logger = logging.getLogger(__name__)

DEAD_NOTICE_S = 5.0  # how long a server whose engine is dead still says so
FLUSH_S = 5.0  # how long last answers may take to leave
ENGINE_EXIT_S = 5.0  # how long the engine process may take to end by itself
WATCH_INTERVAL_S = 0.25


class HttpConfig(uvicorn.Config):
    """uvicorn's settings, with a TLS context that was made elsewhere and may change while it is in use."""

    tls: ssl.SSLContext | None = None

    def load(self) -> None:
        """Prepare."""
        super().load()
        self.ssl = self.tls


class HttpServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the daemon."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers."""
        yield


class Daemon:
    """Runs one engine and one HTTP server.

    Args:
        engine: not started yet.
        app: the ASGI application around it.
        sockets: bound and listening.
        drain_grace_s, shutdown_timeout_s: see the flags of these names.
        on_ready: called once when the engine takes requests.
        tls: answers over TLS with this; None = in the clear.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        app: Any,
        sockets: list[socket.socket],
        *,
        drain_grace_s: float,
        shutdown_timeout_s: float,
        on_ready: Callable[[EngineInfo], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._engine = engine
        self._sockets = sockets
        self._drain_grace_s = drain_grace_s
        self._shutdown_timeout_s = shutdown_timeout_s
        self._on_ready = on_ready
        http = HttpConfig(
            app,
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=int(FLUSH_S),
        )
        http.tls = tls
        self._http = HttpServer(http)
        self._drain_asked = asyncio.Event()
        self._stop_asked = asyncio.Event()

    async def run(self) -> int:
        """Serve until a signal or the engine's end; return the exit code.

        Raises:
            ConfigError, LoadError: the engine can't start.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        await self._engine.start()
        http = asyncio.create_task(self._http.serve(self._sockets))
        serve = asyncio.create_task(self._serve())
        # The HTTP server ends first only when it fails.
        await asyncio.wait((http, serve), return_when=asyncio.FIRST_COMPLETED)
        serve.cancel()
        self._http.should_exit = True
        failure, code = await asyncio.gather(http, serve, return_exceptions=True)
        await self._engine.stop(0.0 if self._stop_asked.is_set() else ENGINE_EXIT_S)
        for result in (failure, code):
            if isinstance(result, BaseException):
                raise result
        assert isinstance(code, int)
        return code

    def _on_signal(self) -> None:
        if self._drain_asked.is_set():
            self._stop_asked.set()
            self._http.force_exit = True
            # It would log a traceback for every request that is cut off.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self._drain_asked.set()

    async def _serve(self) -> int:
        progress = asyncio.create_task(show_progress(self._engine))
        ready = asyncio.create_task(self._engine.wait_ready())
        await self._first_of(ready, self._drain_asked.wait())
        progress.cancel()
        await asyncio.wait([progress])  # the bar has left the terminal
        if not ready.done():
            ready.cancel()
            return 0
        try:
            self._on_ready(ready.result())
            await self._first_of(self._engine_death(), self._drain_asked.wait())
            if self._engine.status.phase == "dead":
                raise EngineDeadError(self._engine.status.reason)
        except EngineDeadError as error:
            logger.critical("%s; leaving in %.0f s", error, DEAD_NOTICE_S)
            await self._first_of(asyncio.sleep(DEAD_NOTICE_S), self._drain_asked.wait())
            return 1
        return await self._drain()

    async def _engine_death(self) -> None:
        while self._engine.status.phase != "dead":  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(WATCH_INTERVAL_S)

    async def _drain(self) -> int:
        engine = self._engine
        engine.start_draining()
        announce_draining(engine.num_streams, self._shutdown_timeout_s)
        await self._first_of(asyncio.sleep(self._drain_grace_s), self._stop_asked.wait())
        engine.refuse_new()
        await self._first_of(engine.drained(self._shutdown_timeout_s), self._stop_asked.wait())
        if self._stop_asked.is_set():
            return 1
        if engine.num_streams:
            engine.end_all("the server is shutting down")
            await self._first_of(engine.drained(FLUSH_S), self._stop_asked.wait())
        return 0

    async def _first_of(self, *awaitables: Any) -> None:
        """Wait until one of them is done; tasks that were passed in go on, coroutines are cancelled."""
        tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task, awaitable in zip(tasks, awaitables, strict=True):
            if task is not awaitable:
                task.cancel()
