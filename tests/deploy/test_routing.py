"""Through HAProxy and nginx: a conversation stays with one server, which holds its responses."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import pytest
from toy_proxy import PROXIES, proxy, require
from toy_responses import TEMPLATE
from toy_server import FakeEngine, RunningServer, byte_tokenizer, run_server, says, toy_info, wait_until

from mambad.engine.async_engine import EngineStatus

NAMES = [f"conversation {number}" for number in range(40)]


@dataclass
class Pair:
    """Two servers behind a proxy; `stops` ends one of them."""

    client: httpx.Client
    servers: dict[str, RunningServer]
    stops: dict[str, ExitStack]
    program: str

    def ask(
        self, path: str = "/v1/completions", session: str | None = None, **body: object
    ) -> httpx.Response:
        headers = {} if session is None else {"X-Session-ID": session}
        body = {"prompt": "x", "max_tokens": 2, **body} if path == "/v1/completions" else body
        return self.client.post(path, json=body, headers=headers)

    def replica_of(self, session: str | None = None, **body: object) -> str:
        answer = self.ask(session=session, **body)
        assert answer.status_code == 200, answer.text
        return answer.headers["x-served-by"]


@pytest.fixture(params=PROXIES)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    require(request.param)
    with ExitStack() as stack:
        stops = [stack.enter_context(ExitStack()) for _ in range(2)]
        servers = [
            each.enter_context(
                run_server(
                    FakeEngine(says("yes"), info=toy_info(max_model_len=4000)),
                    byte_tokenizer(),
                    template=TEMPLATE,
                )
            )
            for each in stops
        ]
        ports = [urlsplit(server.url).port or 0 for server in servers]
        url = stack.enter_context(proxy(request.param, *ports))
        names = ["a", "b"] if request.param == "haproxy" else [f"127.0.0.1:{port}" for port in ports]
        client = stack.enter_context(httpx.Client(base_url=url, timeout=10, trust_env=False))
        named = dict(zip(names, servers, strict=True))
        yield Pair(client, named, dict(zip(names, stops, strict=True)), request.param)


def test_a_conversation_stays_and_only_those_of_a_lost_server_move(pair: Pair) -> None:
    before = {name: pair.replica_of(name) for name in NAMES}
    assert set(before.values()) == pair.servers.keys(), "all conversations are on one server"
    assert before == {name: pair.replica_of(name, prompt="something else") for name in NAMES}
    assert {pair.replica_of() for _ in range(8)} == pair.servers.keys(), "without a name, both are used"

    (kept, lost) = pair.servers
    pair.stops[lost].close()
    after = {name: pair.replica_of(name) for name in NAMES}
    assert set(after.values()) <= {kept, f"{lost}, {kept}"}, "nginx names those that it tried"
    stayed = {name for name in NAMES if before[name] == kept}
    assert {name for name in NAMES if before[name] == after[name]} == stayed


def test_a_503_is_another_servers_request(pair: Pair) -> None:
    """A server that refuses before its checks say so, as nginx always finds it."""
    refusing, other = pair.servers
    pair.servers[refusing].engine.refuses_new = True
    for _ in NAMES:
        answer = pair.ask()
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-served-by"].endswith(other)
    assert len(pair.servers[other].engine.submissions) == len(NAMES)


def test_a_server_that_is_not_ready_gets_no_conversation(pair: Pair) -> None:
    draining, other = pair.servers
    engine = pair.servers[draining].engine
    engine.status, engine.refuses_new = EngineStatus("draining", "", time.time()), True
    if pair.program == "haproxy":
        time.sleep(1.7)  # a check and its timeout
    assert {pair.replica_of(name).split(", ")[-1] for name in NAMES} == {other}
    assert len(pair.servers[other].engine.submissions) == len(NAMES)


def test_the_previous_response_is_found_where_the_conversation_is(pair: Pair) -> None:
    for name in NAMES[:10]:
        first = pair.ask("/v1/responses", name, input="hi").json()
        second = pair.ask("/v1/responses", name, input="and?", previous_response_id=first["id"])
        assert second.status_code == 200, second.text
        path = f"/v1/responses/{second.json()['id']}"
        assert pair.client.get(path, headers={"X-Session-ID": name}).status_code == 200
    holders = [
        name
        for name, server in pair.servers.items()
        if httpx.get(f"{server.url}/v1/responses/{first['id']}").status_code == 200
    ]
    assert len(holders) == 1, "responses are in the memory of one server: that is why the way matters"


def test_an_error_of_the_request_is_passed_on_at_once(pair: Pair) -> None:
    for server in pair.servers.values():
        server.call(lambda engine=server.engine: setattr(engine, "max_requests", 0))
    answer = pair.ask(session="full")
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "queue_full"
    counts = [server.context.metrics.http_requests for server in pair.servers.values()]
    assert sum(each["/v1/completions", "POST", 429] for each in counts) == 1, "no other server is asked"


def slow_down(pair: Pair, step_s: float) -> None:
    """From now on a token takes so long, and none is the last."""
    for server in pair.servers.values():
        server.engine.step_s, server.engine.script = step_s, says("yes", ends=False)


def test_events_are_not_held_back(pair: Pair) -> None:
    slow_down(pair, 0.15)
    body = {"prompt": "x", "max_tokens": 4, "stream": True}
    with pair.client.stream("POST", "/v1/completions", json=body) as answer:
        parts = [part for part in answer.iter_raw() if part]
    assert len(parts) >= 3, "the stream came in one piece"


def test_a_client_that_leaves_ends_its_request(pair: Pair) -> None:
    slow_down(pair, 0.05)
    body = {"prompt": "x", "max_tokens": 200, "stream": True}
    with pair.client.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_raw())
    wait_until(
        lambda: any("disconnect" in server.engine.aborted.values() for server in pair.servers.values())
    )


@pytest.mark.parametrize("pair", ["haproxy"], indirect=True)
def test_haproxy_reads_the_name_from_the_body_too(pair: Pair) -> None:
    by_header = {name: pair.replica_of(name) for name in NAMES}
    assert by_header == {name: pair.replica_of(prompt_cache_key=name) for name in NAMES}
