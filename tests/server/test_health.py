"""What probes, models and the version say in each phase of the server's life."""

import time
from importlib.metadata import version

import pytest
from toy_server import FakeEngine, run_server

from mambad.engine.async_engine import EngineStatus

PHASES = {
    "loading": (
        {"/live": 200, "/ping": 200, "/ready": 503, "/health": 503, "/v1/models": 503},
        "model_loading",
    ),
    "ready": ({"/live": 200, "/ping": 200, "/ready": 200, "/health": 200, "/v1/models": 200}, ""),
    "draining": ({"/live": 200, "/ping": 200, "/ready": 503, "/health": 503, "/v1/models": 503}, "draining"),
    "dead": ({"/live": 503, "/ping": 503, "/ready": 503, "/health": 503, "/v1/models": 503}, "engine_dead"),
}


def server_in(phase):
    engine = FakeEngine()
    progress = 0.25 if phase == "loading" else None
    engine.status = EngineStatus(phase, "weights", time.time() - 5, progress)
    if phase == "loading":
        engine.info = None
    return run_server(engine)


@pytest.mark.parametrize("phase", PHASES)
def test_each_probe_tells_the_phase(phase):
    statuses, reason = PHASES[phase]
    with server_in(phase) as server, server.client() as client:
        for path, status in statuses.items():
            answer = client.get(path)
            assert answer.status_code == status, path
            assert ("retry-after" in answer.headers) == (status == 503)
            if path == "/v1/models":
                if status == 503:
                    assert answer.json()["error"]["code"] == reason
                    assert answer.json()["error"]["type"] == "server_error"
                continue
            head = client.head(path)
            assert (head.status_code, head.content) == (status, b"")
            body = answer.json()
            assert body["status"] == ("ok" if phase == "ready" else phase)
            assert (body["reason"], body["running"]) == (reason, 0)
            assert 5 <= body["since_s"] < 60
            assert body.get("progress") == (0.25 if phase == "loading" else None)
        assert client.get("/version").json() == {"version": version("mambad")}
        assert client.get("/metrics").status_code == 200


@pytest.mark.parametrize(("phase", "code"), [("loading", "model_loading"), ("dead", "engine_dead")])
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/detokenize"])
def test_work_is_refused_with_the_reason_while_there_is_no_engine(phase, code, path):
    with server_in(phase) as server, server.client() as client:
        answer = client.post(path, json={"prompt": "a", "tokens": [1]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)
        assert answer.headers["retry-after"] == "5"


def test_a_draining_server_takes_work_until_the_engine_refuses_it():
    with server_in("draining") as server, server.client() as client:
        body = {"prompt": "a", "max_tokens": 1, "stream": True}
        assert client.post("/v1/completions", json=body).status_code == 200
        server.engine.refuses_new = True
        answer = client.post("/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")


def test_models_are_listed_under_every_name_and_found_by_it():
    with run_server() as server, server.client() as client:
        listing = client.get("/v1/models").json()
        assert listing["object"] == "list"
        assert [card["id"] for card in listing["data"]] == ["toy", "org/toy"]
        for card in listing["data"]:
            assert list(card) == [
                *("id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission")
            ]
            assert (card["object"], card["max_model_len"], card["root"]) == ("model", 256, "toy")
            assert client.get(f"/v1/models/{card['id']}").json() == card
        assert client.get("/v1/models/org%2Ftoy").json()["id"] == "org/toy"


def test_state_is_versioned_and_passes_its_options_on():
    with run_server() as server, server.client() as client:
        body = client.get("/state?entries=0&ids=1&slot_state=leaked&limit=5").json()
        assert (body["object"], body["schema_version"]) == ("mambad.state", 1)
        assert abs(body["time"] - time.time()) < 60
        (engine,) = body["engines"]
        assert list(engine)[:6] == ["engine", "stale", "slots", "kv_blocks", "requests", "last_leak"]
        assert (engine["engine"], engine["stale"], engine["slots"]) == (0, False, {"active": 0, "free": 8})
        assert engine["options"] == {"entries": False, "ids": True, "slot_state": "leaked", "limit": 5}
        default = client.get("/state").json()["engines"][0]["options"]
        assert default == {"entries": True, "ids": False, "slot_state": None, "limit": 1000}


def test_tokens_go_both_ways():
    with run_server() as server, server.client() as client:
        body = {"model": "toy", "prompt": "hé", "add_special_tokens": False}
        answer = client.post("/tokenize", json=body).json()
        assert answer == {"count": 3, "max_model_len": 256, "tokens": [105, 196, 170], "token_strs": None}
        shown = client.post("/tokenize", json={**body, "return_token_strs": True}).json()
        assert shown["token_strs"] == ["h", "Ã", "©"]
        assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": "hé"}
        assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
        for tokens in (None, "a", [257], [-1], [True], [1.5], ["a"]):
            answer = client.post("/detokenize", json={"tokens": tokens})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens")
        for body in ({}, {"prompt": 5}, {"prompt": None}, {"prompt": ["a"]}):
            answer = client.post("/tokenize", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
        answer = client.post("/tokenize", json={"messages": []})
        assert answer.json()["error"]["param"] == "messages"
        assert client.post("/tokenize", json={"prompt": "a", "model": "x"}).status_code == 404
        assert client.get("/tokenizer_info").json()["eos_token"] == "<|endoftext|>"


def test_the_description_holds_every_path_and_its_bodies():
    with run_server() as server, server.client() as client:
        schema = client.get("/openapi.json").json()
        assert {"/v1/completions", "/v1/models", "/tokenize", "/health", "/metrics", "/state"} <= set(
            schema["paths"]
        )
        fields = schema["components"]["schemas"]["CompletionRequest"]["properties"]
        assert {key: value for key, value in fields["temperature"]["anyOf"][0].items() if key != "type"} == {
            "minimum": 0,
            "maximum": 2,
        }
        post = schema["paths"]["/v1/completions"]["post"]
        assert {"200", "400", "401", "404", "408", "413", "415", "429", "500", "503"} <= set(
            post["responses"]
        )
        assert "text/event-stream" in post["responses"]["200"]["content"]
        assert "422" not in str(schema["paths"])
