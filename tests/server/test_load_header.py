"""The load in a header of the answer, for those who ask for it, and at `/load`."""

import json

import pytest
from toy_server import FakeEngine, run_server

PATH = "/v1/completions"
BODY = {"prompt": "p", "max_tokens": 2}
ASK = "endpoint-load-metrics-format"


@pytest.fixture(scope="module")
def client():
    with run_server(FakeEngine()) as server, server.client() as client:
        yield client


@pytest.mark.parametrize("form", ["TEXT", "text"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_as_text(client, form, is_stream):
    answer = client.post(PATH, json={**BODY, "stream": is_stream}, headers={ASK: form})
    assert answer.headers["endpoint-load-metrics"] == (
        "TEXT named_metrics.kv_cache_usage_perc=0.0, named_metrics.num_requests_waiting=0"
    )


def test_as_json(client):
    form, _, text = (
        client.post(PATH, json=BODY, headers={ASK: "JSON"}).headers["endpoint-load-metrics"].partition(" ")
    )
    assert form == "JSON"
    assert json.loads(text) == {"named_metrics": {"kv_cache_usage_perc": 0.0, "num_requests_waiting": 0}}


def test_nobody_else_gets_it(client):
    assert "endpoint-load-metrics" not in client.post(PATH, json=BODY).headers
    assert "endpoint-load-metrics" not in client.post(PATH, json=BODY, headers={ASK: "BIN"}).headers
    assert "endpoint-load-metrics" not in client.post(PATH, json={}, headers={ASK: "TEXT"}).headers


def test_the_load_counts_what_runs_and_what_waits():
    engine = FakeEngine(step_s=0.05)
    with run_server(engine, api_keys=("k",)) as server, server.client() as client:
        assert client.get("/load").json() == {"server_load": 0}
        body = {"prompt": "p", "n": 10, "max_tokens": 100, "stream": True}
        headers = {"authorization": "Bearer k", ASK: "TEXT"}
        with client.stream("POST", PATH, json=body, headers=headers) as answer:
            assert client.get("/load").json() == {"server_load": 10}
            assert answer.headers["endpoint-load-metrics"].endswith("num_requests_waiting=2")
