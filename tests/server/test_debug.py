"""Orders for faults over HTTP: off unless asked for, checked, and passed on to the right engine."""

import pytest
from toy_server import FakeEngine, run_server

from mambad.engine.errors import ConfigError
from mambad.server.config import ServerConfig
from mambad.server.config_parts import app_settings
from mambad.server.model_source import ModelSource

PATH = "/debug/faults"


def test_without_the_flag_the_path_does_not_exist():
    with run_server() as server, server.client() as client:
        assert client.post(PATH, json={"name": "fail_step"}).status_code == 404


def test_an_order_reaches_the_engine():
    engine = FakeEngine()
    with run_server(engine, enable_fault_injection=True) as server, server.client() as client:
        answer = client.post(PATH, json={"name": "slow_step", "times": 3, "ms": 50})
        assert (answer.status_code, answer.json()) == (200, {"name": "slow_step", "is_ordered": True})
        assert engine.injected == [("slow_step", 3, 50, 0)]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": "melt"}, "name"),
        ({"name": "fail_step", "times": 0}, "times"),
        ({"name": "fail_step", "times": "many"}, "times"),
        ({"name": "fail_step", "engine": 7}, "engine"),
        ({"name": "slow_step", "ms": -1}, "ms"),
        ({}, "name"),
    ],
)
def test_an_impossible_order_is_refused_by_name(body, param):
    engine = FakeEngine()
    with run_server(engine, enable_fault_injection=True) as server, server.client() as client:
        answer = client.post(PATH, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert engine.injected == []


def test_an_order_needs_the_admin_key_where_there_is_one():
    settings = {"enable_fault_injection": True, "admin_api_keys": ("boss",)}
    with run_server(FakeEngine(), **settings) as server, server.client() as client:
        assert client.post(PATH, json={"name": "fail_step"}).status_code == 401
        headers = {"authorization": "Bearer boss"}
        assert client.post(PATH, json={"name": "fail_step"}, headers=headers).status_code == 200


def test_faults_are_refused_together_with_a_host_that_others_can_reach(tmp_path):
    config = ServerConfig(model="x", host="0.0.0.0", enable_fault_injection=True)
    with pytest.raises(ConfigError, match="--enable-fault-injection is refused"):
        app_settings(config, ModelSource(tmp_path, tmp_path, "x"), is_loopback=False)


def test_a_rank_can_be_asked_for_and_must_exist():
    with run_server() as server, server.client() as client:
        body = {"prompt": "x", "max_tokens": 1}
        for value, status in (("0", 200), ("7", 400), ("first", 400), ("-1", 400)):
            headers = {"x-data-parallel-rank": value}
            assert client.post("/v1/completions", json=body, headers=headers).status_code == status, value
