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
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from mambad.engine.config import EngineConfig
from mambad.engine.heap import heap_environment
from mambad.engine.messages import FromEngine, ToEngine, WorkerStart, encode, from_engine_decoder
from mambad.engine.progress import ProgressCounter

WORKER = ("-m", "mambad.engine.worker")
"""What the interpreter is given to run."""

MAX_MESSAGES = 16
"""Most that are taken in before the event loop sees to others."""

LAST_WORDS_MS = 20
"""How long an ended process's messages may still be on their way through the socket."""


class EngineProcess:
    """One engine process and the socket to it.

    Args:
        config: what it shall serve.
        on_message: called on the event loop with each message of the engine.
        on_exit: called on the event loop, with the exit code, when the process has ended by itself.
        rank: which of the data-parallel ranks it is.

    Attributes:
        folder: private to this process and us.
        progress: the engine's sign of life.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_message: Callable[[FromEngine], None],
        on_exit: Callable[[int], None],
        rank: int = 0,
    ) -> None:
        self._config = config
        self._on_message = on_message
        self._on_exit = on_exit
        self._rank = rank
        self.folder = Path(tempfile.mkdtemp(prefix="mambad-"))
        self.progress = ProgressCounter(self.folder / "progress")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._unsent: deque[bytes] = deque()  # while the worker has not connected
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
            [sys.executable, *WORKER],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env=heap_environment(os.environ),
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(start) + b"\n")
        self._process.stdin.flush()
        self._pidfd = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._exited)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._receive)

    def send(self, message: ToEngine) -> None:
        """Send a message; returns at once. What is sent to an ended process is lost."""
        if not self._is_closed:
            self._unsent.append(encode(message))
            self._flush()
            # zmq's descriptor tells of a change once, and sending may have swallowed that.
            asyncio.get_running_loop().call_soon(self._receive)

    def _flush(self) -> None:
        with contextlib.suppress(zmq.Again):
            while self._unsent:
                self._socket.send(self._unsent[0], zmq.NOBLOCK)
                self._unsent.popleft()

    def _receive(self) -> None:
        """Pass on what has come, in order, and send what could not be sent before. Only the loop calls it."""
        if self._is_closed:
            return
        self._flush()
        is_drained = False
        try:
            is_drained = self._take(MAX_MESSAGES)
        finally:
            if not is_drained:
                asyncio.get_running_loop().call_soon(self._receive)

    def _take(self, limit: int) -> bool:
        """Pass on up to `limit` messages; return whether there was none left before that."""
        for _ in range(limit):
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return True
            self._on_message(from_engine_decoder.decode(data))
        return False

    async def stop(self, timeout_s: float) -> None:
        """Wait `timeout_s` seconds for the process to end by itself, then kill it; free everything."""
        if self._is_closed:
            return
        self._is_closed = True
        self._forget_pidfd()
        if self._process is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
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
        while self._socket.poll(LAST_WORDS_MS):  # all of them come before the news of its end
            self._take(MAX_MESSAGES)
        self._forget_pidfd()
        assert self._process is not None
        self._on_exit(self._process.wait())

    def _forget_pidfd(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
