"""More work than fits, and clients that mean no good: who leaves, stalls or pushes in harms nobody else.

Three real servers: a wide one for crowds, a narrow one with short limits, and one that is told to stop in the
middle of its work. Clients are bare sockets, so that this process, which shares the cores, stays light.
"""

import http.client
import json
import os
import selectors
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from toy_process import ServedProcess, serve, served_model

FLAGS = ("--load-format", "dummy", "--threads", "1", "--enable-fault-injection", "--log-level", "warning")
WIDE = ("--max-num-seqs", "32", "--stall-timeout", "1", "--served-model-name", 1000 * "x")
"""The name stands in every chunk, so that who reads nothing is noticed after few tokens."""
NARROW = (
    *("--max-num-seqs", "1", "--max-queued-requests", "3"),
    *("--queue-timeout", "1.5", "--request-timeout", "3"),
)
PATH = "/v1/completions"
BODY = {"prompt": "Once upon a time", "max_tokens": 10, "seed": 5, "ignore_eos": True}
ENDLESS = {**BODY, "max_tokens": 1900}
NUM_CYCLES = 10_000
PROBES = ("/live", "/ready", "/health", "/ping")


@dataclass(frozen=True)
class Answer:
    """A whole HTTP answer; header names in small letters."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def choice(self) -> str:
        assert self.status == 200, self.text
        return str(json.loads(self.text)["choices"][0]["text"])

    @property
    def code(self) -> str:
        return str(json.loads(self.text)["error"]["code"])

    @property
    def events(self) -> list[str]:
        return [line[6:] for line in self.text.split("\n") if line.startswith("data: ")]

    @property
    def streamed(self) -> str:
        """Text of the first choice of a stream that has ended well."""
        assert self.events[-1] == "[DONE]"
        return "".join(json.loads(event)["choices"][0]["text"] for event in self.events[:-1])

    @property
    def last_code(self) -> str | None:
        """Code of the error event with which a stream ended, if it did."""
        assert self.events[-1] == "[DONE]"
        error = json.loads(self.events[-2]).get("error")
        return error and str(error["code"])


def address_of(served: ServedProcess) -> tuple[str, int]:
    return "127.0.0.1", int(served.url.rsplit(":", 1)[1])


def call(served: ServedProcess, method: str, path: str, body: object = None, **headers: str) -> Answer:
    connection = http.client.HTTPConnection(*address_of(served), timeout=30)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, answer.read().decode())
    finally:
        connection.close()


def ask(served: ServedProcess, **changes: object) -> Answer:
    return call(served, "POST", PATH, {**BODY, **changes})


def raw_post(body: object, headers: str = "") -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def slow_steps(served: ServedProcess, ms: int) -> None:
    """Make every step from now on take that long; 0 for as long as it takes."""
    order = {"name": "slow_step", "times": 1_000_000 if ms else 1, "ms": ms}
    assert json.loads(call(served, "POST", "/debug/faults", order).text)["is_ordered"]


def engine_state(served: ServedProcess) -> dict[str, Any]:
    """Return what the engine itself says between two steps, not its last report."""
    state: dict[str, Any] = json.loads(call(served, "GET", "/state?entries=0").text)["engines"][0]
    return state


def is_free(served: ServedProcess) -> bool:
    state = engine_state(served)
    held = sum(sum(state[kind].values()) - state[kind]["free"] for kind in ("slots", "kv_blocks"))
    return held == 0 and not any(state["requests"].values())


def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> float:
    """Wait until the condition holds; return how many seconds that took."""
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() - start_s < timeout_s, "it never happened"
        time.sleep(0.02)
    return time.monotonic() - start_s


def count_fds(pids: list[int]) -> list[int]:
    return [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[ServedProcess, ServedProcess]]:
    with (
        serve(served_model(), *FLAGS, *WIDE) as wide,
        serve(served_model(), *FLAGS, *NARROW) as narrow,
    ):
        yield wide, narrow


@pytest.fixture
def wide(servers: tuple[ServedProcess, ServedProcess]) -> Iterator[ServedProcess]:
    yield from left_free(servers[0])


@pytest.fixture
def narrow(servers: tuple[ServedProcess, ServedProcess]) -> Iterator[ServedProcess]:
    yield from left_free(servers[1])


def left_free(served: ServedProcess) -> Iterator[ServedProcess]:
    yield served
    slow_steps(served, 0)
    until(lambda: is_free(served))


GREETINGS = {
    "nothing": b"",
    "half a head": f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Le".encode(),
    "half a body": raw_post(BODY)[:-20],
    "a stream": raw_post({**ENDLESS, "stream": True, "n": 2}),
}


def come_and_go(served: ServedProcess, greeting: bytes, resets: bool) -> None:
    with socket.create_connection(address_of(served), timeout=30) as client:
        if resets:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(greeting)


def come_and_go_often(served: ServedProcess, numbers: range) -> None:
    for number in numbers:
        kind = "a stream" if number % 25 == 0 else ("nothing", "half a head", "half a body")[number % 3]
        come_and_go(served, GREETINGS[kind], resets=number % 2 == 0)


def test_ten_thousand_clients_that_leave_at_once_leave_nothing_behind(wide: ServedProcess) -> None:
    right = ask(wide).choice
    pids = [wide.process.pid, wide.engine_pid()]
    come_and_go_often(wide, range(500))
    until(lambda: is_free(wide))
    fds, memory = count_fds(pids), [resident_mib(pid) for pid in pids]
    start_s = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        quarters = [range(first, NUM_CYCLES, 4) for first in range(4)]
        list(pool.map(lambda numbers: come_and_go_often(wide, numbers), quarters))
    took_s = time.monotonic() - start_s
    freed_s = until(lambda: is_free(wide))
    until(lambda: sum(count_fds(pids)) <= sum(fds) + 3)
    grown = [resident_mib(pid) - before for pid, before in zip(pids, memory, strict=True)]
    print(f"\n{NUM_CYCLES} in {took_s:.1f} s, free after {freed_s:.2f} s,", end=" ")
    print(f"fds {fds} -> {count_fds(pids)}, MiB more {grown}")
    assert sum(grown) < 30
    assert ask(wide).choice == right
    assert not any("Traceback" in line for line in wide.lines)


def test_all_choices_of_a_stream_end_within_a_second_of_its_client(wide: ServedProcess) -> None:
    with socket.create_connection(address_of(wide), timeout=30) as client:
        client.sendall(raw_post({**ENDLESS, "stream": True, "n": 3}))
        until(lambda: engine_state(wide)["requests"]["running"] == 3)
        assert client.recv(15) == b"HTTP/1.1 200 OK"
    freed_s = until(lambda: is_free(wide), timeout_s=1.0)
    print(f"\nthree choices were free after {freed_s:.3f} s")


@contextmanager
def crowd(served: ServedProcess, size: int, body: object, is_narrow: bool = False) -> Iterator[list[Any]]:
    """Post a body from so many sockets at once; narrow ones make both kernels buffer little."""
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.socket()) for _ in range(size)]
        for client in clients:
            if is_narrow:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
            client.settimeout(30)
            client.connect(address_of(served))
            client.sendall(raw_post(body))
        yield clients


@contextmanager
def reading(clients: list[socket.socket]) -> Iterator[list[int]]:
    """Take whatever comes, in one thread; yields a list with the number of bytes of each."""
    num_bytes, is_over = [0] * len(clients), threading.Event()

    def read() -> None:
        with selectors.DefaultSelector() as selector:
            for index, client in enumerate(clients):
                selector.register(client, selectors.EVENT_READ, index)
            while not is_over.is_set():
                for key, _ in selector.select(0.1):
                    num_bytes[key.data] += len(clients[key.data].recv(1 << 16))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield num_bytes
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("step_ms", [100, 0], ids=["slow-steps", "full-speed"])
def test_health_answers_while_the_engine_is_saturated(wide: ServedProcess, step_ms: int) -> None:
    slow_steps(wide, step_ms)
    times_s: list[float] = []
    with crowd(wide, 64, {**ENDLESS, "stream": True, "n": 2}) as clients, reading(clients) as num_bytes:
        until(lambda: engine_state(wide)["requests"]["running"] == 32)
        end_s = time.monotonic() + 2
        while time.monotonic() < end_s:
            for path in PROBES:
                start_s = time.monotonic()
                assert call(wide, "GET", path).status == 200
                times_s.append(time.monotonic() - start_s)
            time.sleep(0.01)
        assert engine_state(wide)["requests"]["waiting"] >= 64
    print(
        f"\nslowest of {len(times_s)} health answers: {max(times_s):.3f} s; {sum(num_bytes)} bytes streamed"
    )
    assert max(times_s) < 1
    assert min(num_bytes[:16]) > 1000


def test_readers_that_read_nothing_hold_up_nobody_and_are_dropped(wide: ServedProcess) -> None:
    right, pid = ask(wide).choice, wide.process.pid
    before_mib, peak_mib, times_s = resident_mib(pid), 0.0, []
    start_s = time.monotonic()
    with crowd(wide, 20, {**ENDLESS, "stream": True}, is_narrow=True) as clients:
        until(lambda: engine_state(wide)["requests"]["running"] == 20)
        while engine_state(wide)["requests"]["running"]:
            assert time.monotonic() - start_s < 30, "they are still there"
            asked_s = time.monotonic()
            assert ask(wide).choice == right
            times_s.append(time.monotonic() - asked_s)
            peak_mib = max(peak_mib, resident_mib(pid))
        gone_s = time.monotonic() - start_s
        until(lambda: is_free(wide))
        ends = [read_to_the_end(client) for client in clients]
    print(f"\ngone after {gone_s:.1f} s; others' slowest of {len(times_s)}: {max(times_s):.2f} s;", end=" ")
    print(f"{peak_mib - before_mib:.1f} MiB more; read {min(map(len, ends))} to {max(map(len, ends))} bytes")
    assert not any(end.endswith(b"0\r\n\r\n") for end in ends), "dropped, not ended"
    assert len(times_s) > 3
    assert max(times_s) < 3
    assert peak_mib - before_mib < 100


def read_to_the_end(client: socket.socket) -> bytes:
    data = b""
    with suppress(ConnectionResetError):
        while chunk := client.recv(1 << 20):
            data += chunk
    return data


def test_two_requests_of_one_id_are_two_requests(wide: ServedProcess) -> None:
    bodies = [{**BODY, "prompt": prompt, "max_tokens": 60} for prompt in ("one", "and another one")]
    right = [call(wide, "POST", PATH, body).choice for body in bodies]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            asked = [
                pool.submit(call, wide, "POST", PATH, body, **{"X-Request-Id": "same"}) for body in bodies
            ]
            answers = [future.result() for future in asked]
            assert [answer.choice for answer in answers] == right
            assert [answer.headers["x-request-id"] for answer in answers] == ["same", "same"]


def test_two_requests_in_one_packet_are_answered_in_order(wide: ServedProcess) -> None:
    bodies = [{**BODY, "prompt": prompt, "max_tokens": n} for prompt, n in (("first", 120), ("second", 3))]
    right = [call(wide, "POST", PATH, body).choice for body in bodies]
    with socket.create_connection(address_of(wide), timeout=30) as client:
        client.sendall(raw_post(bodies[0]) + raw_post(bodies[1], "Connection: close\r\n"))
        head, first, second = read_to_the_end(client).decode().split("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK")
    whole, end = json.JSONDecoder().raw_decode(first)
    assert first[end:].startswith("HTTP/1.1 200 OK")
    assert [answer["choices"][0]["text"] for answer in (whole, json.loads(second))] == right


def ask_many(
    served: ServedProcess, pool: ThreadPoolExecutor, *changes: dict[str, Any]
) -> list[Future[Answer]]:
    return [pool.submit(ask, served, **change) for change in changes]


def test_a_full_queue_refuses_the_rest_and_serves_those_in_it(narrow: ServedProcess) -> None:
    right = [ask(narrow, seed=seed).choice for seed in range(3)]
    slow_steps(narrow, 10)
    with ThreadPoolExecutor(3) as pool:
        with crowd(narrow, 1, {**ENDLESS, "stream": True}):
            until(lambda: engine_state(narrow)["requests"]["running"] == 1)
            served = ask_many(narrow, pool, *({"seed": seed} for seed in range(3)))
            until(lambda: engine_state(narrow)["requests"]["waiting"] == 3)
            for stream in (False, True):
                refused = ask(narrow, stream=stream)
                assert (refused.status, refused.code) == (429, "queue_full")
                assert int(refused.headers["retry-after"]) >= 1
        assert [future.result().choice for future in served] == right


def test_who_waits_too_long_for_a_slot_is_told_so(narrow: ServedProcess) -> None:
    slow_steps(narrow, 20)
    with ThreadPoolExecutor(3) as pool:
        (holder,) = ask_many(narrow, pool, {"max_tokens": 1900, "stream": True})
        until(lambda: engine_state(narrow)["requests"]["running"] == 1)
        start_s = time.monotonic()
        for refused in [future.result() for future in ask_many(narrow, pool, {}, {"stream": True})]:
            assert (refused.status, refused.code) == (429, "queue_timeout")
            assert int(refused.headers["retry-after"]) >= 1
        assert time.monotonic() - start_s > 1.4
        assert holder.result().last_code == "timeout"


def test_who_takes_too_long_is_ended(narrow: ServedProcess) -> None:
    right = ask(narrow).choice
    slow_steps(narrow, 20)
    ended = ask(narrow, max_tokens=1900)
    assert (ended.status, ended.code, ended.headers["x-should-retry"]) == (408, "timeout", "false")
    assert until(lambda: is_free(narrow)) < 1
    ended = ask(narrow, max_tokens=1900, stream=True)
    assert (ended.status, ended.last_code) == (200, "timeout")
    assert len(ended.events) > 10
    assert until(lambda: is_free(narrow)) < 1
    slow_steps(narrow, 0)
    assert ask(narrow).choice == right


def test_a_server_that_is_told_to_stop_ends_every_stream_properly() -> None:
    changes: list[dict[str, Any]] = [
        {"seed": seed, "stream": True, "max_tokens": 20 if seed % 2 else 1900} for seed in range(20)
    ]
    with (
        serve(served_model(), *FLAGS, "--max-num-seqs", "20", "--shutdown-timeout", "2") as served,
        ThreadPoolExecutor(20) as pool,
    ):
        right = [ask(served, seed=seed, max_tokens=20).choice for seed in range(1, 20, 2)]
        slow_steps(served, 40)
        streams = ask_many(served, pool, *changes)
        until(lambda: engine_state(served)["requests"]["running"] == 20)
        served.process.send_signal(signal.SIGTERM)
        until(lambda: call(served, "GET", "/ready").status == 503)
        assert call(served, "GET", "/live").status == 200
        refused = ask(served)
        assert (refused.status, refused.code) == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        answers = [future.result() for future in streams]
        assert [answer.streamed for answer in answers[1::2]] == right
        assert {answer.last_code for answer in answers[::2]} == {"shutdown"}
        assert served.process.wait(10) == 0
        assert not any("Traceback" in line for line in served.lines)
