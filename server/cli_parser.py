"""The command line of `serve` and `check`, made from the table of settings.

Texts are only collected here; `mambad.server.config_sources` parses them together with the other sources.
"""

import argparse
import itertools
from collections.abc import Sequence
from typing import Any, NoReturn

from mambad.engine.errors import ConfigError
from mambad.server.config_sources import DROPPED, Arguments, nearest
from mambad.server.flag import Flag
from mambad.server.flag_kinds import SIZE, TOKENS, size_text
from mambad.server.vllm_flags import drop_meaningless

SHORT_OPTIONS = {"data_parallel_size": ("-dp",)}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser without abbreviations, whose errors are one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError instead of printing the usage and leaving."""
        raise ConfigError(message)

    def parse_strictly(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse all words; raises ConfigError for an unknown flag and names the nearest one."""
        for word in itertools.takewhile(lambda word: word != "--", words):
            if word.startswith("-h") and word != "-h":  # argparse would take it for -h with a value
                raise ConfigError(f"unknown flag {word}; see {self.prog} --help")
        found, unknown = self.parse_known_args(words)
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            option = next((word.split("=")[0] for word in unknown if word.startswith("-")), None)
            if option is None:
                raise ConfigError(f"unexpected argument {unknown[0]!r}; see {self.prog} --help")
            hint = nearest(option, known) or f"; see {self.prog} --help"
            raise ConfigError(f"unknown flag {option}{hint}")
        return found


def parse_settings(
    command: str,
    description: str,
    flags: Sequence[Flag],
    words: Sequence[str],
    parent: Parser | None = None,
) -> tuple[Arguments, str | None]:
    """Parse `[MODEL] --flag …`.

    Args:
        command: name of the sub-command.
        description: for `--help`.
        flags: the settings that the command takes.
        words: the arguments after the command.
        parent: flags that are no settings; their values come back beside the settings', already converted.

    Returns:
        what was given, by setting, and the path of the YAML file or None. Flags of vLLM that mean nothing
        here stand under DROPPED.

    Raises:
        ConfigError: wrong usage.
    """
    name = f"mambad {command}"
    parser = Parser(
        prog=name,
        usage=f"{name} [MODEL] [--flag value ...]",
        description=description,
        parents=[] if parent is None else [parent],
    )
    parser.add_argument("positional_model", nargs="?", metavar="MODEL", help="same as --model")
    parser.add_argument("--config", metavar="FILE", help="YAML file of settings; environment and flags win")
    for section, members in itertools.groupby(flags, key=lambda flag: flag.section):
        group = parser.add_argument_group(section)
        for flag in members:
            _add(group, flag)
    kept, dropped = drop_meaningless(words)
    found = vars(parser.parse_strictly(kept))
    if dropped:
        found[DROPPED] = dropped
    file = found.pop("config")
    model = found.pop("positional_model")
    if model is not None and found.setdefault("model", model) != model:
        raise ConfigError(f"MODEL is {model!r} but --model is {found['model']!r}; give one of them")
    return found, file


def default_text(flag: Flag) -> str:
    """Say a flag's default the way a user would write it."""
    if flag.default_text:
        return flag.default_text
    if isinstance(flag.default, tuple):
        return ",".join(flag.default)
    if isinstance(flag.default, bool):
        return "on" if flag.default else "off"
    if isinstance(flag.default, float):
        return f"{flag.default:g}"
    if isinstance(flag.default, int) and flag.kind in (SIZE, TOKENS):
        return size_text(flag.default).removesuffix("" if flag.kind is SIZE else "iB")
    return str(flag.default) or "none"


def _add(group: Any, flag: Flag) -> None:
    text = f"{flag.help} Default: {default_text(flag)}.".replace("`", "").replace("%", "%%")
    options: dict[str, Any] = {"dest": flag.name, "help": text, "default": argparse.SUPPRESS}
    if flag.is_switch:
        options["action"] = argparse.BooleanOptionalAction
    else:
        options["metavar"] = "{" + ",".join(flag.choices) + "}" if flag.choices else flag.kind.word
        options["action"] = "append" if flag.is_list else "store"
    group.add_argument(flag.option, *SHORT_OPTIONS.get(flag.name, ()), **options)
