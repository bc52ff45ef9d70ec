"""What the tests of the console share: how Chromium is started, and what they ask of the server beside it."""

import subprocess
import time
from collections.abc import Callable
from typing import Any

import httpx
from toy_process import ServedProcess

NAME = "mambad.test"
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    f"--host-resolver-rules=MAP {NAME} 127.0.0.1",
)


def eventually(holds: Callable[[], bool], timeout_s: float = 10) -> None:
    until = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.05)


def running(served: ServedProcess) -> int:
    (engine,) = httpx.get(f"{served.url}/state?entries=0").json()["engines"]
    return int(engine["requests"]["running"])


def slow_down(served: ServedProcess, num_steps: int) -> None:
    """Let so many steps take 20 ms each, so that there is time to look."""
    order = {"name": "slow_step", "ms": 20, "times": num_steps}
    httpx.post(f"{served.url}/debug/faults", json=order).raise_for_status()


def run_in_a_shell(command: str | None) -> Any:
    assert command is not None
    done = subprocess.run(["sh"], input=command.encode(), capture_output=True, check=True, timeout=30)
    return httpx.Response(200, content=done.stdout).json()
