"""Keys, and what keeps foreign web pages away from a server without one."""

import pytest
from toy_server import run_server

from mambad.server.access import KeyRing

GUARDED = ["/v1/models", "/v1/models/toy", "/tokenizer_info", "/state", "/nope"]
OPEN = ["/live", "/ready", "/health", "/ping", "/version", "/metrics", "/openapi.json"]


def status_of(client, path, method="GET", **headers):
    return client.request(
        method, path, headers={key.replace("_", "-"): v for key, v in headers.items()}
    ).status_code


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def test_every_path_but_the_open_ones_asks_for_a_key():
    with run_server(api_keys=("one", "zwei-ü")) as server, server.client() as client:
        for path in GUARDED:
            answer = client.get(path)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"] == {
                "message": "Incorrect API key provided.",
                "type": "authentication_error",
                "param": None,
                "code": "invalid_api_key",
            }
        assert client.post("/v1/completions", content=b"x" * 9_000_000).status_code == 401, "before the size"
        assert all(client.get(path).status_code == 200 for path in OPEN)
        assert status_of(client, "/v1/completions", "OPTIONS") == 405
        for value in ("Bearer one", "bearer  one", "Bearer zwei-ü".encode()):
            assert client.get("/v1/models", headers={"authorization": value}).status_code == 200
        for value in ("Bearer on", "Bearer one1", "Bearer", "one", "Basic one", "Bearer \xff", ""):
            headers = {"authorization": value.encode("latin-1")}
            assert client.get("/v1/models", headers=headers).status_code == 401


def test_metrics_can_be_protected_too():
    with run_server(api_keys=("one",), protect_metrics=True) as server, server.client() as client:
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers=bearer("one")).status_code == 200


def test_admin_paths_need_the_admin_key_when_there_is_one():
    with run_server(api_keys=("user",), admin_api_keys=("admin",)) as server, server.client() as client:
        assert client.get("/state").status_code == 401
        assert client.get("/state", headers=bearer("user")).status_code == 401
        assert client.get("/state", headers=bearer("admin")).status_code == 200
        assert client.get("/v1/models", headers=bearer("admin")).status_code == 200
    with run_server(admin_api_keys=("admin",), is_loopback=False) as server, server.client() as client:
        assert client.get("/state").status_code == 401
        assert client.get("/state", headers=bearer("admin")).status_code == 200


def test_admin_paths_without_an_admin_key_answer_on_loopback_only():
    with run_server(is_loopback=False) as server, server.client() as client:
        answer = client.get("/state")
        assert answer.status_code == 403
        assert "--admin-api-key" in answer.json()["error"]["message"]
    with run_server(api_keys=("user",)) as server, server.client() as client:
        assert client.get("/state", headers=bearer("user")).status_code == 200


def test_a_keyless_server_refuses_pages_of_other_origins():
    with run_server() as server, server.client() as client:
        own = server.url
        for origin in ("https://evil.example", "null", f"{own}1", "http://localhost:1"):
            answer = client.get("/v1/models", headers={"origin": origin})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert client.get("/v1/models", headers={"origin": own}).status_code == 200
    with run_server(api_keys=("one",)) as server, server.client() as client:
        headers = {"origin": "https://page.example", **bearer("one")}
        assert client.get("/v1/models", headers=headers).status_code == 200


def test_allowed_origins_get_what_browsers_ask_for():
    page = "https://page.example"
    with run_server(allowed_origins=(page,), api_keys=("one",)) as server, server.client() as client:
        preflight = client.options(
            "/v1/completions",
            headers={
                "origin": page,
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization, content-type",
            },
        )
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == page
        answer = client.get("/v1/models", headers={"origin": page, **bearer("one")})
        assert answer.headers["access-control-allow-origin"] == page
        assert answer.headers["access-control-expose-headers"] == "x-request-id"
        other = client.get("/v1/models", headers={"origin": "https://evil.example", **bearer("one")})
        assert "access-control-allow-origin" not in other.headers
    with run_server(allowed_origins=(page,)) as server, server.client() as client:
        assert client.get("/v1/models", headers={"origin": page}).status_code == 200
        assert client.get("/v1/models", headers={"origin": "https://evil.example"}).status_code == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:1", 200),
        ("127.9.9.9", 200),
        ("[::1]:80", 200),
        ("app.localhost", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::2]", 403),
        ("192.168.0.1", 403),
    ],
)
def test_on_keyless_loopback_the_host_must_be_local(host, status, loopback):
    assert loopback.get("/v1/models", headers={"host": host}).status_code == status
    assert loopback.get("/health", headers={"host": host}).status_code == 200


@pytest.fixture(scope="module")
def loopback():
    with run_server() as server, server.client() as client:
        yield client


def test_allowed_hosts_are_all_that_is_answered():
    def statuses(*hosts, **settings):
        with run_server(**settings) as server, server.client() as client:
            return [client.get("/v1/models", headers={"host": host}).status_code for host in hosts]

    hosts = ("evil.example", "mine.example:80", "localhost")
    assert statuses(*hosts, allowed_hosts=("mine.example",)) == [403, 200, 200]
    assert statuses(*hosts, allowed_hosts=("mine.example",), is_loopback=False) == [403, 200, 403]
    assert statuses(*hosts, allowed_hosts=("*",)) == [200, 200, 200]
    assert statuses(*hosts, is_loopback=False) == [200, 200, 200]


def test_keys_can_be_replaced_but_not_switched_off():
    ring = KeyRing(("one", "two"))
    assert (ring.holds(b"one"), ring.holds(b"two"), ring.holds(b"")) == (True, True, False)
    ring.replace(("three",))
    assert (ring.holds(b"one"), ring.holds(b"three")) == (False, True)
    ring.replace(())
    assert ring.is_enabled
    assert not ring.holds(b"three")
    assert not KeyRing().is_enabled
    assert "three" not in repr(vars(KeyRing(("three",))))
