"""Reads `{"name": "f", "arguments": {…}}`, the JSON object in which several dialects write a call. Pure.

Arguments are passed on as they come, as the model wrote them, valid or not: their client has to check them
anyway. Only where they end is found here.
"""

import json
import re
from typing import Any

from mambad.server.tool_parsers.base import Piece

MAX_HEAD_CHARS = 1024
"""A call whose arguments begin later than this is read in one piece when it is complete."""

CHARS = r'[^"\\<\x00-\x1f]*+'
HEAD = re.compile(
    rf'\s*\{{\s*"name"\s*:\s*("{CHARS}(?:\\[^<]{CHARS})*+")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{{)'
)


def read_head(text: str) -> tuple[str, int] | None:
    """Return the function's name and where its arguments begin, once a text tells them."""
    match = HEAD.match(text[: MAX_HEAD_CHARS + 1])
    if match is None:
        return None
    try:
        name = json.loads(match[1])
    except ValueError:
        return None
    return (name, match.end()) if name else None


def read_call(text: str) -> list[Piece] | None:
    """Return the call in a text that is complete, whatever the order of its keys; None if it holds none."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not isinstance(content.get("name"), str) or not content["name"]:
        return None
    arguments = _arguments(content.get("arguments", content.get("parameters")))
    return None if arguments is None else [Piece("call", content["name"]), Piece("arguments", arguments)]


def _arguments(value: Any) -> str | None:
    """Return arguments as JSON: they are an object, nothing, or an object within a string."""
    if value is None:
        return "{}"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    try:
        return value if isinstance(value, str) and isinstance(json.loads(value), dict) else None
    except (ValueError, RecursionError):
        return None


def is_rest_of_call(text: str) -> bool:
    """Whether a text, after its arguments, only completes a call."""
    try:
        return isinstance(json.loads('{"arguments":0' + text), dict)
    except (ValueError, RecursionError):
        return not text.strip()


class ArgumentScanner:
    """Finds the end of a JSON object that arrives in pieces.

    Args:
        breaks_at: a character that ends it, too, outside of its strings; no JSON holds it there.
    """

    def __init__(self, breaks_at: str = "") -> None:
        self._breaks_at = breaks_at
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def scan(self, text: str) -> int | None:
        """Return where in this next text the object ends, None if it goes on."""
        for place, char in enumerate(text):
            if self._in_string:
                self._scan_string(char)
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return place + 1
            elif char == self._breaks_at:
                return place
        return None

    def _scan_string(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._in_string = False
