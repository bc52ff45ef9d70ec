"""What the small clients share: where the server is, the key, and the events of a streamed answer.

Needs the standard library only. Every fault is one line.
"""

import json
import os
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

from mambad.engine.errors import ConfigError
from mambad.server.cli_parser import Parser

SILENCE_S = 600.0  # most seconds without a byte, the wait for the answer included


class ClientError(Exception):
    """The server can't be reached, or answered with an error; the message is one line."""


class ApiClient:
    """Streams answers of one server."""

    def __init__(self, options: Namespace, program: str) -> None:
        self._root = api_root(options.url)
        self._headers = {"Content-Type": "application/json", "User-Agent": program}
        key = read_api_key(options)
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._model: str | None = options.model

    def events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Post a body without its null fields, and yield the events of the answer as they arrive.

        Raises:
            ClientError: no answer, an error answer, or an error in mid-stream.
        """
        if self._model is None:
            self._model = first_model(self._root, self._headers)
        sent = {name: value for name, value in body.items() if value is not None}
        sent = {"model": self._model, **sent, "stream": True}
        with _open(f"{self._root}{path}", self._headers, json.dumps(sent).encode()) as answer:
            yield from _events(answer)


def add_client_flags(parser: Parser) -> None:
    """Add the flags that say where the server is and how it draws."""
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the server is (%(default)s)")
    parser.add_argument("--model", help="served name; default: the first one that the server lists")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="default: %(default)s")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--top-p", type=float, metavar="P")
    parser.add_argument("--seed", type=int, metavar="N")
    parser.add_argument("--api-key-file", metavar="FILE", help="default: the variable MAMBAD_API_KEY")


def api_root(url: str) -> str:
    """Return the URL that API paths follow; `url` may have the /v1 already."""
    return url.rstrip("/").removesuffix("/v1") + "/v1"


def read_api_key(options: Namespace) -> str:
    """Return the key of `--api-key-file` or the environment, or nothing.

    Raises:
        ConfigError: the file holds none.
    """
    if options.api_key_file is None:
        return os.environ.get("MAMBAD_API_KEY", "").split(",")[0].strip()
    try:
        return Path(options.api_key_file).read_text().split()[0]
    except (OSError, IndexError):
        raise ConfigError(f"--api-key-file: no key can be read from {options.api_key_file}") from None


def first_model(root: str, headers: dict[str, str]) -> str:
    """Return the first served name that a server lists.

    Raises:
        ClientError: it can't be reached, or lists none.
    """
    with _open(f"{root}/models", headers) as answer:
        try:
            return str(json.load(answer)["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise ClientError(f"{root}/models lists no model; name one with --model") from None


def _open(url: str, headers: dict[str, str], body: bytes | None = None) -> IO[bytes]:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url: {url!r} is no http address; write http://HOST:PORT")
    request = urllib.request.Request(url, data=body, headers=headers)
    try:
        opened: IO[bytes] = urllib.request.urlopen(request, timeout=SILENCE_S)
    except urllib.error.HTTPError as error:
        with error:
            raise ClientError(f"{url} answered {error.code}: {_message(error.read())}") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ClientError(f"no answer from {url} ({reason}); is `mambad serve` running there?") from None
    return opened


def _events(answer: IO[bytes]) -> Iterator[dict[str, Any]]:
    try:
        for line in answer:
            if not line.startswith(b"data:"):
                continue
            data = line[len(b"data:") :].strip()
            if data == b"[DONE]":
                return
            event: dict[str, Any] = json.loads(data)
            if "error" in event:
                raise ClientError(_message(data))
            yield event
    except (OSError, HTTPException, ValueError) as error:
        raise ClientError(f"the stream broke: {error}") from None
    raise ClientError("the stream ended before its [DONE]")


def _message(body: bytes) -> str:
    """Return the message of an OpenAI error body, or the start of whatever else was sent."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body[:200].decode("utf-8", "replace").strip() or "an empty body"
