"""Reading values out of a checkpoint's config.json, with errors that name the key.

Owns the typed access that the family adapters share. It knows no family. No torch.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mambad.engine.errors import LoadError

_INFINITY_WORDS = {"inf": math.inf, "infinity": math.inf, "-inf": -math.inf, "-infinity": -math.inf}


class ConfigValues:
    """A configuration as read from JSON. A key that holds null counts as absent."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def raw(self, key: str) -> Any:
        """Return the value as it is, None when absent."""
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """Return a whole number of at least `minimum`.

        Raises:
            LoadError: absent without default, not a whole number, or too small.
        """
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not float(value).is_integer():
            raise LoadError(f"config.json: {key} is {value!r}, expected a whole number")
        if value < minimum:
            raise LoadError(f"config.json: {key} is {value}, expected at least {minimum}")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number.

        Raises:
            LoadError: absent without default, or not a finite number.
        """
        value = _as_float(self._present(key, default))
        if value is None or not math.isfinite(value):
            raise LoadError(f"config.json: {key} is {self._values.get(key)!r}, expected a finite number")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a finite number above 0.

        Raises:
            LoadError: absent without default, or not above 0.
        """
        value = self.number(key, default)
        if value <= 0:
            raise LoadError(f"config.json: {key} is {value}, expected a number above 0")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return true or false.

        Raises:
            LoadError: absent without default, or neither.
        """
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise LoadError(f"config.json: {key} is {value!r}, expected true or false")
        return value

    def limits(self, key: str) -> tuple[float, float]:
        """Return a pair (lowest, highest); null on either side, or for the whole, means unlimited.

        Infinity comes as a bare word, as a string, as null, or as {"__float__": "Infinity"}.

        Raises:
            LoadError: not such a pair, or the lowest is above the highest.
        """
        value = self._values.get(key)
        if value is None:
            return (0.0, math.inf)
        pair: list[float | None] = []
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
            pair = [
                default if end is None else _as_float(end)
                for end, default in zip(value, (0.0, math.inf), strict=True)
            ]
        match pair:
            case [float() as lowest, float() as highest] if lowest <= highest:
                return (lowest, highest)
        raise LoadError(f"config.json: {key} is {value!r}, expected [lowest, highest]")

    def require(self, key: str, allowed: Sequence[Any], *, default: Any, why: str) -> None:
        """Refuse a value that would change the arithmetic in a way that is not implemented.

        Raises:
            LoadError: the value (or `default` when absent) is not among `allowed`.
        """
        value = self._values.get(key)
        if (default if value is None else value) not in allowed:
            raise LoadError(f"config.json: {key}={value!r} is not supported: {why}")

    def _present(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            raise LoadError(f"config.json lacks {key}: the checkpoint's configuration is incomplete")
        return value


def _as_float(value: Any) -> float | None:
    """Return a JSON value as a float, whichever way it spells infinity; None when it is no number."""
    if isinstance(value, Mapping):
        value = value.get("__float__")
    if isinstance(value, str):
        return _INFINITY_WORDS.get(value.lower())
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)
