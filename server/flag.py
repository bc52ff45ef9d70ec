"""One setting, described once: flag, environment variable, YAML key, documentation.

`flag()` is written where a field of `ServerConfig` gets its default; the field then carries all that the
command line, the sources and the docs need. Parses and checks one value; does not know which settings there
are (`mambad.server.config`) nor where values come from (`mambad.server.config_sources`).
"""

from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from mambad.engine.errors import ConfigError
from mambad.server.flag_kinds import SWITCH, Kind

ENV_PREFIX = "MAMBAD_"
_NOTHING_WORDS = ("none", "auto")
_KEY = "mambad.flag"


@dataclass(frozen=True, slots=True)
class Flag:
    """What is known of one setting.

    Attributes:
        kind: how text becomes a value.
        section: heading in help and docs.
        help: one or two sentences.
        choices: the allowed words; empty allows all.
        minimum, maximum: bounds of a number, inclusive.
        is_list: a tuple of values: repeated flag, comma-separated in the environment, YAML list.
        is_secret: never printed; a value on the command line warns.
        is_optional: `none` and `auto` are words for None; true as well where None is the default.
        default_text: stands in the docs for a default that start-up computes.
        name: the field's name; set by `flags_of`.
        default: the field's default; set by `flags_of`.
    """

    kind: Kind
    section: str
    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    is_list: bool = False
    is_secret: bool = False
    is_optional: bool = False
    default_text: str = ""
    name: str = ""
    default: object = None

    @property
    def option(self) -> str:
        """The flag on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return ENV_PREFIX + self.name.upper()

    @property
    def is_switch(self) -> bool:
        """Whether the flag is `--x` / `--no-x`."""
        return self.kind is SWITCH

    def parse(self, text: str, source: str) -> object:
        """Turn one text into a checked value.

        Args:
            text: what the user wrote.
            source: where it stands, for the message: `--port`, `MAMBAD_PORT` or `port in FILE`.

        Raises:
            ConfigError: in one line with value, limit and remedy.
        """
        shown = "***" if self.is_secret else text
        takes_none = self.is_optional or self.default is None
        if takes_none and text.strip().lower() in _NOTHING_WORDS:
            return None
        if self.choices and text not in self.choices:
            raise ConfigError(f"{source}: {shown!r} is not among {', '.join(self.choices)}")
        try:
            value = self.kind.parse(text)
        except ValueError as error:
            raise ConfigError(f"{source}: {shown!r}: {error}") from None
        if isinstance(value, int | float):
            self._check_range(value, shown, source)
        return value

    def parse_list(self, texts: Sequence[str], source: str) -> tuple[object, ...]:
        """Turn several texts into a tuple; raises ConfigError as `parse` does."""
        return tuple(self.parse(text, source) for text in texts)

    def _check_range(self, value: float, shown: str, source: str) -> None:
        too_small = self.minimum is not None and value < self.minimum
        too_large = self.maximum is not None and value > self.maximum
        if not too_small and not too_large:
            return
        if self.maximum is None:
            limit = f"must be at least {self.minimum:g}"
        else:
            limit = f"must be from {self.minimum or 0:g} to {self.maximum:g}"
        raise ConfigError(f"{source}: {shown} {limit}")


def flag(default: object, kind: Kind, section: str, help: str, **facts: Any) -> Any:
    """Describe a dataclass field; `facts` are the optional attributes of `Flag`."""
    return field(default=default, metadata={_KEY: Flag(kind=kind, section=section, help=help, **facts)})


def flags_of(config_class: Any) -> tuple[Flag, ...]:
    """Return the flags of a dataclass whose fields were made with `flag`, in order."""
    return tuple(_named(item) for item in fields(config_class))


def _named(item: Field[Any]) -> Flag:
    described: Flag = item.metadata[_KEY]
    return replace(described, name=item.name, default=item.default)
