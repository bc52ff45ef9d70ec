"""A system's process with its children: how it is started and ended, when it was ready, what memory it took.

Children may use every core, whatever core the benchmark itself keeps to.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ALL_CORES = os.sched_getaffinity(0)


def use_all_cores() -> None:
    os.sched_setaffinity(0, ALL_CORES)


class PeerError(Exception):
    """A system did not start or did not answer; the message says it in one line."""


class Process:
    """A child in a session of its own. Its standard error, and usually its output, go to a log."""

    def __init__(self, command: list[str], log: Path, **options: object) -> None:
        self.start_s = time.monotonic()
        self.ready_s = 0.0
        with log.open("w") as file:
            self.child = subprocess.Popen(
                command,
                start_new_session=True,
                preexec_fn=use_all_cores,
                **{"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file} | options,
            )

    def wait_for(self, url: str, limit_s: float) -> None:
        """Return when `url` answers; raises PeerError when that takes too long or the child ends."""
        with self.stopped_on_error():
            while not _answers(url):
                if self.child.poll() is not None or time.monotonic() > self.start_s + limit_s:
                    raise PeerError("did not start; see its log")
                time.sleep(0.05)
        self.is_ready()

    @contextlib.contextmanager
    def stopped_on_error(self) -> Iterator[None]:
        """End the process when what is done with it fails or is interrupted."""
        try:
            yield
        except BaseException:
            self.stop()
            raise

    def is_ready(self) -> None:
        self.ready_s = time.monotonic() - self.start_s

    def peak_mib(self) -> float:
        """Sum of the processes' own peaks."""
        kib = 0
        for pid in (self.child.pid, *_children(self.child.pid)):
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("VmHWM"):
                        kib += int(line.split()[1])
        return kib / 1024

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()


def _children(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *_children(int(child))]
    return found


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def stop_when_told() -> None:
    """Turn SIGTERM into SystemExit, so that the processes that were started are ended too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
