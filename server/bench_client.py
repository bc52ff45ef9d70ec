"""The load generator's HTTP client: one streamed completion over plain asyncio streams, with its times.

Small on purpose: what the client computes is time that the server on the same machine does not have. A
connection is opened for every request. It interprets no text and knows no statistics.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson

from mambad.engine.errors import ConfigError

MAX_MESSAGE_CHARS = 200


@dataclass(frozen=True, slots=True)
class Target:
    """A completions endpoint.

    Attributes:
        host, port, tls: where to connect.
        head: request line and headers, up to the length of the body.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None
    head: bytes

    @classmethod
    def from_url(cls, url: str, headers: Mapping[str, str]) -> "Target":
        """Parse `http://host:port/path`; raises ConfigError when it is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url: {url!r} is no http address; write http://HOST:PORT")
        lines = [f"POST {parts.path} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join([*lines, "Content-Length: "]).encode()
        is_tls = parts.scheme == "https"
        tls = ssl.create_default_context() if is_tls else None
        return cls(parts.hostname, parts.port or (443 if is_tls else 80), tls, head)


@dataclass(slots=True)
class Exchange:
    """One request and what came of it; times are seconds of `time.perf_counter`.

    Attributes:
        start_s: before connecting.
        arrivals_s: when each chunk that carries a token came, in order.
        end_s: when the stream had ended.
        num_prompt_tokens, num_output_tokens: as the server counted; None when it did not say.
        error: what went wrong in one line, or None.
    """

    start_s: float
    arrivals_s: list[float] = field(default_factory=list)
    end_s: float = 0.0
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    error: str | None = None


async def stream_completion(target: Target, body: Mapping[str, Any], timeout_s: float) -> Exchange:
    """Send one request and read its stream to the end. Whatever goes wrong stands in the result's `error`."""
    exchange = Exchange(time.perf_counter())
    try:
        async with asyncio.timeout(timeout_s):
            await _converse(target, orjson.dumps(body), exchange)
    except TimeoutError:
        exchange.error = f"no end within {timeout_s:g} s"
    except EOFError:
        exchange.error = "the connection was closed in the middle of an answer"
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        exchange.error = str(error)[:MAX_MESSAGE_CHARS] or type(error).__name__
    exchange.end_s = time.perf_counter()
    return exchange


async def _converse(target: Target, body: bytes, exchange: Exchange) -> None:
    reader, writer = await asyncio.open_connection(target.host, target.port, ssl=target.tls)
    try:
        writer.write(b"%b%d\r\n\r\n%b" % (target.head, len(body), body))
        await writer.drain()
        status, headers = await _read_head(reader)
        lines = _lines(reader, headers)
        if status != 200:
            text = b"".join([line async for line in lines])
            exchange.error = f"{status}: {_message(text)}"
        else:
            await _read_events(lines, exchange)
    finally:
        writer.close()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[bytes, bytes]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    pairs = (line.partition(b":") for line in lines if line)
    return int(first.split()[1]), {name.lower(): value.strip().lower() for name, _, value in pairs}


async def _lines(reader: asyncio.StreamReader, headers: Mapping[bytes, bytes]) -> AsyncIterator[bytes]:
    """Yield the body's lines, whatever framing it has."""
    rest = b""
    async for piece in _pieces(reader, headers):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


async def _pieces(reader: asyncio.StreamReader, headers: Mapping[bytes, bytes]) -> AsyncIterator[bytes]:
    if headers.get(b"transfer-encoding") == b"chunked":
        while size := int((await reader.readline()).split(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
    elif b"content-length" in headers:
        yield await reader.readexactly(int(headers[b"content-length"]))
    else:
        while piece := await reader.read(65536):
            yield piece


async def _read_events(lines: AsyncIterator[bytes], exchange: Exchange) -> None:
    async for line in lines:
        if not line.startswith(b"data:"):
            continue
        now = time.perf_counter()
        data = line[len(b"data:") :].strip()
        if data == b"[DONE]":
            return
        event = orjson.loads(data)
        if "error" in event:
            exchange.error = _message(data)
            return
        # Without text the last chunk only says why the stream ended; before it, no text is half a character.
        if any(choice.get("text") or not choice.get("finish_reason") for choice in event.get("choices", ())):
            exchange.arrivals_s.append(now)
        if usage := event.get("usage"):
            exchange.num_prompt_tokens = usage["prompt_tokens"]
            exchange.num_output_tokens = usage["completion_tokens"]
    exchange.error = "the stream ended before its [DONE]"


def _message(body: bytes) -> str:
    try:
        text = str(orjson.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        text = body.decode("utf-8", "replace").strip() or "an empty body"
    return text[:MAX_MESSAGE_CHARS]
