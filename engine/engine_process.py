"""Starts, watches and ends the engine process. Used by `AsyncEngine` on the event loop. No torch.

Owns the private folder (mode 0700) with the socket and the progress counter, and the process handle.
Neither process outlives the other: the worker's standard input is a pipe that ends with us, and a pidfd
tells us at once when the worker ends.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from mambad.engine.config import EngineConfig
from mambad.engine.heap import heap_environment
from mambad.engine.messages import FromEngine, ToEngine, WorkerStart, encode, from_engine_decoder
from mambad.engine.progress import ProgressCounter


class EngineProcess:
    """One engine process and the socket to it.

    Args:
        config: what it shall serve.
        on_exit: called on the event loop, with the exit code, when the process has ended by itself.
        rank: which of the data-parallel ranks it is.

    Attributes:
        folder: private to this process and us.
        progress: the engine's sign of life.
    """

    def __init__(self, config: EngineConfig, on_exit: Callable[[int], None], rank: int = 0) -> None:
        self._config = config
        self._on_exit = on_exit
        self._rank = rank
        self.folder = Path(tempfile.mkdtemp(prefix="mambad-"))
        self.progress = ProgressCounter(self.folder / "progress")
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._is_closed = False

    @property
    def pid(self) -> int:
        """Process id. Raises: AssertionError before `start`."""
        assert self._process is not None
        return self._process.pid

    def start(self, rendezvous: Path | None = None) -> None:
        """Bind the socket and start the worker; ranks in lockstep meet by the file `rendezvous`."""
        endpoint = f"ipc://{self.folder}/engine"
        self._socket.bind(endpoint)
        start = WorkerStart(
            endpoint,
            str(self.folder / "progress"),
            self._config,
            self._rank,
            None if rendezvous is None else str(rendezvous),
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mambad.engine.worker"],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env=heap_environment(os.environ),
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(start) + b"\n")
        self._process.stdin.flush()
        self._pidfd = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._exited)

    def send(self, message: ToEngine) -> None:
        """Send a message; returns at once. What is sent to an ended process is lost."""
        if not self._is_closed:
            self._socket.send(encode(message))

    async def receive(self) -> FromEngine:
        """Return the next message of the engine."""
        message: FromEngine = from_engine_decoder.decode(await self._socket.recv())
        return message

    async def stop(self, timeout_s: float) -> None:
        """Wait `timeout_s` seconds for the process to end by itself, then kill it; free everything."""
        if self._is_closed:
            return
        self._is_closed = True
        self._forget_pidfd()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, timeout_s)
            self.kill()
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._socket.close()
        self._context.term()
        self.progress.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """End the process now, if it still runs, and reap it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _exited(self) -> None:
        self._forget_pidfd()
        assert self._process is not None
        self._on_exit(self._process.wait())

    def _forget_pidfd(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
