"""`mambad complete` against small servers that answer well, badly and not at all."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from mambad.server import cli

MODELS = json.dumps({"data": [{"id": "tiny"}]}).encode()
GOOD = (
    b': keep-alive\n\ndata: {"choices": [{"text": "to "}]}\n\ndata: {"choices": [{"text": "b\xc3\xa9"}]}\n\n'
    b'data: {"choices": [], "usage": {}}\n\ndata: [DONE]\n\n'
)

PIECE = b'data: {"choices": [{"text": "a"}]}\n\n'


@contextmanager
def answering(body: bytes, status: int = 200, models: bytes = MODELS) -> Iterator[tuple[str, list[Any]]]:
    """Serve `body` for completions; yields the URL and the list of (headers, request body) seen."""
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, models)

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            seen.append((self.headers, self.path, json.loads(self.rfile.read(length))))
            self.answer(status, body)

        def answer(self, code: int, content: bytes) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", seen
        finally:
            server.shutdown()
            thread.join()


def test_text_is_streamed_to_standard_output(capsys):
    with answering(GOOD) as (url, seen):
        code = cli.main(["complete", "or not", "--url", url, "--seed", "7", "--stop", "x", "--stop", "y"])
    assert code == 0
    assert capsys.readouterr() == ("to bé\n", "")
    _, path, body = seen[0]
    assert path == "/v1/completions"
    assert body == {
        "model": "tiny",
        "prompt": "or not",
        "stream": True,
        "max_tokens": 256,
        "seed": 7,
        "stop": ["x", "y"],
    }


def test_the_url_may_end_in_v1_and_the_model_may_be_named(capsys):
    with answering(GOOD, models=b"not asked") as (url, seen):
        assert cli.main(["complete", "x", "--url", f"{url}/v1/", "--model", "m", "--max-tokens", "3"]) == 0
    _, path, body = seen[0]
    assert (path, body["model"], body["max_tokens"]) == ("/v1/completions", "m", 3)


def test_the_key_comes_from_the_environment_or_a_file(monkeypatch, tmp_path, capsys):
    keys = tmp_path / "keys"
    keys.write_text("from-file\n", encoding="utf-8")
    monkeypatch.setenv("MAMBAD_API_KEY", "first,second")
    with answering(GOOD) as (url, seen):
        assert cli.main(["complete", "x", "--url", url]) == 0
        assert cli.main(["complete", "x", "--url", url, "--api-key-file", str(keys)]) == 0
    assert [headers["Authorization"] for headers, _, _ in seen] == ["Bearer first", "Bearer from-file"]
    assert cli.main(["complete", "x", "--api-key-file", str(tmp_path / "gone")]) == 2


def test_a_prompt_may_look_like_a_flag_behind_two_hyphens(capsys):
    with answering(GOOD) as (url, seen):
        assert cli.main(["complete", "--url", url, "--", "-ho, there"]) == 0
    assert seen[-1][2]["prompt"] == "-ho, there"


def test_an_error_answer_is_one_line_and_exit_code_1(capsys):
    with answering(b'{"error": {"message": "too long"}}', status=400) as (url, _):
        assert cli.main(["complete", "x", "--url", url]) == 1
    assert capsys.readouterr().err == f"mambad: error: {url}/v1/completions answered 400: too long\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            b'data: {"choices": [{"text": "a"}]}\n\ndata: {"error": {"message": "engine died"}}\n\n',
            "engine died",
        ),
        (b'data: {"choices": [{"text": "a"}]}\n\n', "the stream ended before its [DONE]"),
        (b"data: nonsense\n\n", "the stream broke: "),
    ],
)
def test_a_stream_that_goes_wrong_is_one_line_and_exit_code_1(capsys, body, message):
    with answering(body) as (url, _):
        assert cli.main(["complete", "x", "--url", url]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"mambad: error: {message}")
    assert err.count("\n") == 1


def test_no_server_is_one_line_and_exit_code_1(capsys):
    with answering(GOOD) as (url, _):
        pass
    assert cli.main(["complete", "x", "--url", url, "--model", "m"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"mambad: error: no answer from {url}/v1/completions (")
    assert "is `mambad serve` running there?" in err


def test_a_server_without_models_is_explained(capsys):
    with answering(GOOD, models=b'{"data": []}') as (url, _):
        assert cli.main(["complete", "x", "--url", url]) == 1
    assert "lists no model; name one with --model" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["localhost:8000", "file:///etc/hostname"])
def test_what_is_no_http_address_is_refused(capsys, url):
    assert cli.main(["complete", "x", "--model", "m", "--url", url]) == 2
    assert "is no http address; write http://HOST:PORT" in capsys.readouterr().err
