"""Servers that are replaced, one after the other, behind a proxy and under load."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
from toy_load import CheckedLoad, Outcome, Question, answers
from toy_process import ServedProcess, serve
from toy_proxy import free_ports, proxy

SETTLE_S = 1.5
"""A proxy that asks `/ready` every second needs this to know of a new server."""
PAUSE_S = 0.1
"""What a client waits between two requests."""


@dataclass
class Replacement:
    """How one server was replaced.

    Attributes:
        name: of its place.
        signalled_s, unready_s, exited_s, ready_s: when it got SIGTERM, was first seen not to be ready, had
            exited, and when the new one was ready.
        num_running: its requests at the signal.
        exit_code: of the old process.
    """

    name: str
    signalled_s: float
    num_running: int
    unready_s: float = 0.0
    exited_s: float = 0.0
    ready_s: float = 0.0
    exit_code: int | None = None


class Replica:
    """A place for a server: one port, and one process after the other."""

    def __init__(self, name: str, model: Path | str, port: int, flags: tuple[str, ...]) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self._start: Callable[[], AbstractContextManager[ServedProcess]] = lambda: serve(
            model, "--port", str(port), *flags
        )
        self._stack = ExitStack()
        self._served: ServedProcess | None = None

    def start(self) -> None:
        """Start a process; returns when it is ready."""
        self._served = self._stack.enter_context(self._start())

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        self._stack.close()

    def replace(self) -> Replacement:
        """SIGTERM, wait for the exit, start a new process at the same port."""
        assert self._served is not None
        old = self._served.process
        deadline = time.monotonic() + 10
        while (load := httpx.get(f"{self.url}/load").json()["server_load"]) < 1:
            assert time.monotonic() < deadline, "nothing runs on the server that is to be replaced"
        done = Replacement(self.name, time.monotonic(), load)
        with ThreadPoolExecutor(1) as pool:
            stopping = pool.submit(self.stop)
            while httpx.get(f"{self.url}/ready").status_code == 200:
                assert time.monotonic() < done.signalled_s + 5, "SIGTERM does not turn /ready red"
                time.sleep(0.005)
            done.unready_s = time.monotonic()
            stopping.result()
        done.exited_s, done.exit_code = time.monotonic(), old.returncode
        self.start()
        done.ready_s = time.monotonic()
        return done


@dataclass
class Rolling:
    """What came of it: every request, and how each server was replaced."""

    outcomes: list[Outcome]
    replacements: list[Replacement]

    def during(self, one: Replacement) -> list[Outcome]:
        """Return the requests that ran at some time between the signal and the new server's readiness."""
        return [
            each for each in self.outcomes if each.ended_s > one.signalled_s and each.started_s < one.ready_s
        ]

    def on_the_old(self, one: Replacement) -> list[Outcome]:
        """Return the requests that the old server answered after its signal, wholly or in part."""
        mine = [each for each in self.during(one) if each.replica.endswith(one.name)]
        return [each for each in mine if each.started_s < one.exited_s]


def roll(
    program: str,
    model: Path | str,
    flags: tuple[str, ...],
    asked: list[Question],
    num_requests: int,
    *,
    num_clients: int,
    num_replaced: int = 2,
) -> Rolling:
    """Replace one or both of two servers behind a proxy while clients stream; return what happened.

    The load goes on until they have been replaced and at least `num_requests` have been answered.
    """
    first, second = free_ports(2)
    names = ("a", "b") if program == "haproxy" else (f"127.0.0.1:{first}", f"127.0.0.1:{second}")
    replicas = [Replica(name, model, port, flags) for name, port in zip(names, (first, second), strict=True)]
    with ExitStack() as stack:
        for replica in replicas:
            stack.callback(replica.stop)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(Replica.start, replicas))
            expected, other = pool.map(lambda replica: answers(replica.url, asked), replicas)
        assert expected == other, "two servers answer in two ways"
        url = stack.enter_context(proxy(program, first, second))
        time.sleep(SETTLE_S)
        load = stack.enter_context(CheckedLoad(url, asked, expected, num_clients, PAUSE_S))
        replacements = []
        for number, replica in enumerate(replicas[:num_replaced]):
            load.wait_for(num_requests * (1 + number) // 10)
            replacements.append(replica.replace())
            time.sleep(SETTLE_S)
        return Rolling(load.finish(num_requests), replacements)
