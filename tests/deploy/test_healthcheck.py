"""The image's health check asks the server where its flags and variables put it."""

import runpy
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy/image/healthcheck.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


class Live(BaseHTTPRequestHandler):
    """Answers `/live` with the server's `status`, anything else with 404."""

    def do_GET(self) -> None:
        self.send_response(self.server.status if self.path == "/live" else 404)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def address_string(self) -> str:
        return "test"


class UnixServer(socketserver.UnixStreamServer):
    status = 200


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Live) as server:
        server.status = 200  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def outcome(script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *words: str, **environment: str) -> int:
    """The exit code beside a process 1 with these words and this environment."""

    class ProcessOne:
        def __init__(self, path: str) -> None:
            assert path == "/proc/1/cmdline"

        def read_bytes(self) -> bytes:
            return "\0".join(("python3", "/app/bin/mambad", *words, "")).encode()

    main = script["main"]
    monkeypatch.setitem(main.__globals__, "Path", ProcessOne)
    for name in ("MAMBAD_PORT", "MAMBAD_HOST", "MAMBAD_UDS", "MAMBAD_SSL_CERTFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    code: int = main()
    return code


@pytest.mark.parametrize("form", ["--port {}", "--port={}", "--host 0.0.0.0 --port {}"])
def test_the_port_is_the_one_of_the_flag(script, monkeypatch, server, form):
    words = form.format(server.server_port).split()
    assert outcome(script, monkeypatch, "serve", *words, MAMBAD_PORT="1") == 0


def test_the_port_is_the_one_of_the_environment(script, monkeypatch, server):
    port = str(server.server_port)
    assert outcome(script, monkeypatch, "serve", MAMBAD_PORT=port, MAMBAD_HOST="0.0.0.0") == 0


def test_a_service_link_of_kubernetes_is_no_port(script):
    setting = script["setting"]
    assert setting("port", [], {"MAMBAD_PORT": "tcp://10.0.0.1:8000"}) == ""
    assert script["connection"]([], {"MAMBAD_PORT": "tcp://10.0.0.1:8000"}).port == 8000


def test_a_server_that_is_not_alive_fails(script, monkeypatch, server, capsys):
    server.status = 503
    assert outcome(script, monkeypatch, "--port", str(server.server_port)) == 1
    assert capsys.readouterr().err == "/live answered 503\n"


def test_no_server_and_a_port_that_is_none_fail_in_one_line(script, monkeypatch, server, capsys):
    port = str(server.server_port)
    server.server_close()
    assert outcome(script, monkeypatch, "--port", port) == 1
    assert outcome(script, monkeypatch, "--port", "many") == 1
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_unix_socket_is_asked_too(script, monkeypatch, tmp_path):
    path = str(tmp_path / "s")
    with UnixServer(path, Live) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            assert outcome(script, monkeypatch, "--uds", path) == 0
        finally:
            server.shutdown()
            thread.join()


def test_a_certificate_means_tls(script):
    connection = script["connection"](["serve", "--ssl-certfile", "x.pem"], {"MAMBAD_HOST": "::"})
    assert type(connection).__name__ == "HTTPSConnection"
    assert connection.host == "::1"


def test_it_needs_nothing_but_the_standard_library():
    code = f"import runpy, sys; runpy.run_path({str(SCRIPT)!r}); print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {name.split(".")[0] for name in loaded} <= sys.stdlib_module_names | {"__main__"}
