"""How the text of a setting becomes a value.

Every source gives text: the command line, the environment and, after `str`, the YAML file. So one parser a
kind serves all three. A parser raises `ValueError` with the second half of a sentence: what is expected.
Knows no flag by name.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SECONDS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value.

    Attributes:
        word: stands for the value in help and docs.
        parse: text → value; raises ValueError saying what is expected.
    """

    word: str
    parse: Callable[[str], object]


def parse_text(text: str) -> str:
    """Return the text as it is; raises ValueError when it is empty."""
    if not text:
        raise ValueError("expected some text")
    return text


def parse_integer(text: str) -> int:
    """Parse a plain integer; raises ValueError."""
    try:
        return int(text)
    except ValueError:
        raise ValueError("expected a whole number") from None


def parse_size(text: str) -> int:
    """Parse a number with an optional unit; raises ValueError.

    As in vLLM a single lower-case letter is decimal and a single upper-case one binary: `32k` is 32000 and
    `32K` is 32768. `KiB` and `Ki` are binary, `kB` and `KB` decimal.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match.group(2) if match else ""
    if match is None or unit.lower() not in _UNITS:
        raise ValueError("expected a number with an optional unit, such as 4096, 32k or 4GiB")
    is_binary_letter = len(unit) == 1 and unit.isupper() and unit != "B"
    factor = _UNITS[unit.lower() + "i"] if is_binary_letter else _UNITS[unit.lower()]
    value = Decimal(match.group(1)) * factor
    if value != int(value):
        raise ValueError("expected a whole number after the unit is applied")
    return int(value)


def size_text(value: int) -> str:
    """Write a size the way `parse_size` reads it, with the largest binary unit that leaves a whole number."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return str(value)


def parse_seconds(text: str) -> float:
    """Parse a duration such as `60`, `1.5s`, `500ms`, `5m` or `24h` into seconds; raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match.group(2) not in _SECONDS:
        raise ValueError("expected seconds, or a number with ms, s, m, h or d")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def parse_switch(text: str) -> bool:
    """Parse a yes or no; raises ValueError."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("expected true or false")


def parse_path(text: str) -> str:
    """Return a path with `~` expanded; raises ValueError when it is empty."""
    return str(Path(parse_text(text)).expanduser())


def parse_json(text: str) -> str:
    """Return the text of a JSON object as it is; raises ValueError when it is none."""
    try:
        is_object = isinstance(json.loads(text), dict)
    except ValueError:
        is_object = False
    if not is_object:
        raise ValueError('expected a JSON object, such as {"temperature": 0.7}')
    return text


TEXT = Kind("TEXT", parse_text)
INTEGER = Kind("N", parse_integer)
SIZE = Kind("SIZE", parse_size)
TOKENS = Kind("TOKENS", parse_size)
SECONDS = Kind("SECONDS", parse_seconds)
SWITCH = Kind("", parse_switch)
PATH = Kind("PATH", parse_path)
JSON = Kind("JSON", parse_json)
