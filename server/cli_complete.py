"""`mambad complete PROMPT`: a small streaming client for any OpenAI-compatible server.

Needs the standard library only. Prints the text as it arrives; exit code 1 and one line when the server can't
be reached or answers with an error.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

from mambad.engine.errors import ConfigError
from mambad.server.cli_parser import Parser

SILENCE_S = 600.0  # most seconds without a byte, the wait for the answer included


class ClientError(Exception):
    """The server can't be reached, or answered with an error; the message is one line."""


def run(words: Sequence[str]) -> int:
    """Stream one completion to standard output; returns the exit code."""
    options = _parser().parse_strictly(words)
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    try:
        for text in complete(options, prompt):
            print(text, end="", flush=True)
        print()
    except ClientError as error:
        print(f"mambad: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader (head, less) has enough; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def complete(options: Namespace, prompt: str) -> Iterator[str]:
    """Yield the pieces of the completion's text as they arrive.

    Raises:
        ClientError: no answer, an error answer, or an error in mid-stream.
    """
    root = api_root(options.url)
    headers = {"Content-Type": "application/json", "User-Agent": "mambad-complete"}
    key = read_api_key(options)
    if key:
        headers["Authorization"] = f"Bearer {key}"
    body = {
        "model": options.model or first_model(root, headers),
        "prompt": prompt,
        "stream": True,
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "seed": options.seed,
        "stop": options.stop,
    }
    sent = {name: value for name, value in body.items() if value is not None}
    with _open(f"{root}/completions", headers, json.dumps(sent).encode()) as answer:
        yield from _texts(answer)


def _parser() -> Parser:
    parser = Parser(
        prog="mambad complete", description="Stream a completion from an OpenAI-compatible server."
    )
    parser.add_argument("prompt", metavar="PROMPT", help="text to continue; - reads standard input")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the server is (%(default)s)")
    parser.add_argument("--model", help="served name; default: the first one that the server lists")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="default: %(default)s")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--top-p", type=float, metavar="P")
    parser.add_argument("--seed", type=int, metavar="N")
    parser.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; repeatable")
    parser.add_argument("--api-key-file", metavar="FILE", help="default: the variable MAMBAD_API_KEY")
    return parser


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


def _texts(answer: IO[bytes]) -> Iterator[str]:
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
            yield from (choice.get("text") or "" for choice in event.get("choices", ()))
    except (OSError, HTTPException, ValueError) as error:
        raise ClientError(f"the stream broke: {error}") from None
    raise ClientError("the stream ended before its [DONE]")


def _message(body: bytes) -> str:
    """Return the message of an OpenAI error body, or the start of whatever else was sent."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body[:200].decode("utf-8", "replace").strip() or "an empty body"
