"""JSON bodies → Python, without holding the interpreter lock for long.

A parser holds the lock from the first byte to the last, so a large body is taken apart first: its fields are
found without being built, and a long list of numbers is built slice by slice. What has far more values than
any request needs is refused before it is built.
"""

import re
from typing import Any

import msgspec
import orjson

from mambad.server.errors import ApiError, invalid

LARGE_BYTES = 256 * 1024
SLICE_BYTES = 64 * 1024
MAX_FIELDS = 256
MAX_VALUES = 50_000
"""Most strings, lists and objects in a large field. Numbers in a flat list don't count."""

STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
FAULTS = (orjson.JSONDecodeError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError)

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])


def parse_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in a body. Of keys that occur twice the last counts.

    Raises:
        ApiError: 400 for anything else: broken JSON or UTF-8, lone surrogates, NaN, numbers beyond a double,
            nesting beyond 1,024 levels, a value that is no object, too many values.
    """
    try:
        content = orjson.loads(raw) if len(raw) <= LARGE_BYTES else _parse_large(raw)
    except FAULTS as error:
        raise invalid(None, f"The body is not valid JSON: {error}", "invalid_json") from None
    if not isinstance(content, dict):
        raise invalid(None, "The body must be a JSON object.", "invalid_json")
    _check_fields(len(content))
    return content


def _parse_large(raw: bytes) -> dict[str, Any]:
    fields = _fields.decode(raw)
    _check_fields(len(fields))
    return {name: _parse_field(name, bytes(value)) for name, value in fields.items()}


def _check_fields(num_fields: int) -> None:
    if num_fields > MAX_FIELDS:
        raise invalid(None, f"The body has {num_fields} fields; {MAX_FIELDS} are allowed.", "invalid_json")


def _parse_field(name: str, value: bytes) -> Any:
    if len(value) <= SLICE_BYTES or value.startswith(b'"'):
        return orjson.loads(value)
    num_strings, num_containers = _count(value)
    if num_strings + num_containers > MAX_VALUES:
        raise _too_many(name)
    if num_strings or not value.startswith(b"["):
        return orjson.loads(value)
    if num_containers == 1:
        return _parse_numbers(value)
    return [_parse_item(bytes(item)) for item in _items.decode(value)]


def _parse_item(value: bytes) -> Any:
    is_flat_list = value.startswith(b"[") and value.count(b"[") == 1 and b"{" not in value
    return _parse_numbers(value) if is_flat_list else orjson.loads(value)


def _parse_numbers(value: bytes) -> list[Any]:
    """Parse a list that holds no string, list or object; its commas are therefore its own."""
    numbers: list[Any] = []
    start, last = 1, len(value) - 1
    while start < last:
        end = value.find(b",", start + SLICE_BYTES, last)
        end = last if end < 0 else end
        numbers += orjson.loads(b"[%b]" % value[start:end])
        start = end + 1
    return numbers


def _count(value: bytes) -> tuple[int, int]:
    """Return how many strings, and how many lists and objects a value holds; stops soon after MAX_VALUES."""
    num_strings = num_containers = start = 0
    for match in STRING.finditer(value):
        num_strings += 1
        num_containers += value.count(b"[", start, match.start()) + value.count(b"{", start, match.start())
        start = match.end()
        if num_strings + num_containers > MAX_VALUES:
            break
    return num_strings, num_containers + value.count(b"[", start) + value.count(b"{", start)


def _too_many(name: str) -> ApiError:
    return invalid(name[:64], f"A field holds more than {MAX_VALUES} values.")
