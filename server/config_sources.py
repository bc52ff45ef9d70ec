"""Where settings come from: flags win over environment over file over default.

Turns those four into one `ServerConfig`, and says what a user should be warned of. Every value is checked by
its own `Flag` (`mambad.server.flag`), so an error names the very place where it was written.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mambad.engine.errors import ConfigError
from mambad.engine.logs import redact
from mambad.server.config import FLAGS, ServerConfig
from mambad.server.flag import ENV_PREFIX, Flag
from mambad.server.flag_kinds import JSON

OTHER_VARIABLES = ("MAMBAD_CONFIG", "MAMBAD_CPU_LEVEL", "MAMBAD_KERNELS")
"""Variables that are no setting: the name of the file, and the kernels' own switches."""

_SERVICE_LINK = re.compile(r"MAMBAD_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)")
Arguments = Mapping[str, str | bool | Sequence[str]]
"""Setting → text, switch or texts, for the flags that were given."""

DROPPED = "vllm_flags"
"""Where the arguments hold flags that were passed over."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The effective configuration.

    Attributes:
        config: all settings.
        sources: setting → where its value was written; defaults are absent.
        warnings: lines for the log, which is set up only after this.
    """

    config: ServerConfig
    sources: Mapping[str, str]
    warnings: tuple[str, ...]

    def describe(self, only_changed: bool) -> str:
        """Name settings as `name=value`: those that were written somewhere, or all. Secrets show as `***`."""
        shown = [item for item in FLAGS if not only_changed or item.name in self.sources]
        return " ".join(f"{item.name}={_redacted(item, getattr(self.config, item.name))}" for item in shown)


@dataclass(frozen=True, slots=True)
class _Written:
    """A setting as one source has it: its texts (one, or any number for a list) and the place."""

    flag: Flag
    texts: tuple[str, ...]
    source: str


def load_config(
    arguments: Mapping[str, str | bool | Sequence[str]],
    environment: Mapping[str, str],
    file: str | None = None,
) -> LoadedConfig:
    """Read all sources.

    Args:
        arguments: what the command line gave.
        environment: the process's environment.
        file: YAML file; None falls back to `MAMBAD_CONFIG`, then to no file.

    Raises:
        ConfigError: a value, key or file is wrong; one line that names it.
    """
    file = file or environment.get("MAMBAD_CONFIG") or None
    warnings: list[str] = []
    written: dict[str, _Written] = {}
    for source in (
        _from_file(Path(file).expanduser()) if file else (),
        _from_environment(environment, warnings),
        _from_arguments(arguments, warnings),
    ):
        written |= {item.flag.name: item for item in source}
    values: dict[str, Any] = {name: _value_of(item) for name, item in written.items()}
    sources = {name: item.source for name, item in written.items()}
    return LoadedConfig(ServerConfig(**values), sources, tuple(warnings))


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return `; did you mean X?` for the known word most like this one, or nothing below `likeness` of 1."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=likeness)
    return f"; did you mean {matches[0]}?" if matches else ""


def _value_of(item: _Written) -> object:
    if item.flag.is_list:
        return item.flag.parse_list(item.texts, item.source)
    return item.flag.parse(item.texts[0], item.source)


def _from_arguments(arguments: Arguments, warnings: list[str]) -> Iterable[_Written]:
    dropped = arguments.get(DROPPED)
    if dropped and not isinstance(dropped, str | bool):
        warnings.append(f"flags of vLLM that mean nothing here: {' '.join(dropped)}")
    for flag in FLAGS:
        if flag.name not in arguments:
            continue
        value = arguments[flag.name]
        if flag.is_secret:
            warnings.append(
                f"{flag.option} on the command line shows the key to every user of this machine: "
                f"use {flag.option}-file or {flag.variable}"
            )
        if isinstance(value, str | bool):
            yield _Written(flag, (str(value),), flag.option)
        else:
            texts = value if flag.is_secret else [part for text in value for part in _split(text)]
            yield _Written(flag, tuple(texts), flag.option)


def _from_environment(environment: Mapping[str, str], warnings: list[str]) -> Iterable[_Written]:
    by_variable = {flag.variable: flag for flag in FLAGS}
    mine = {name: text for name, text in sorted(environment.items()) if name.startswith(ENV_PREFIX)}
    links = [name for name, text in mine.items() if _is_service_link(name, text)]
    if links:
        warnings.append(f"ignored what looks like Kubernetes service links: {', '.join(links)}")
    unknown = mine.keys() - by_variable.keys() - set(links) - set(OTHER_VARIABLES)
    warnings += [
        f"{name} is no setting of mambad{nearest(name, by_variable, 0.8)}" for name in sorted(unknown)
    ]
    for name, text in mine.items():
        if name in by_variable and name not in links and text:
            flag = by_variable[name]
            yield _Written(flag, tuple(_split(text)) if flag.is_list else (text,), name)


def _is_service_link(name: str, text: str) -> bool:
    return text.startswith(("tcp://", "udp://")) or _SERVICE_LINK.fullmatch(name) is not None


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _from_file(path: Path) -> Iterable[_Written]:
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise ConfigError(f"--config: can't read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config: {path} is no YAML: {' '.join(str(error).split())}") from None
    if root is None:
        return
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"--config: {path} must hold `setting: value` lines")
    by_name = {flag.name: flag for flag in FLAGS}
    seen: set[str] = set()
    for key_node, value_node in root.value:
        place = f"{path}:{key_node.start_mark.line + 1}"
        key = str(key_node.value)
        name = key.replace("-", "_")
        if name not in by_name:
            raise ConfigError(f"{place}: unknown key {key!r}{nearest(name, by_name)}")
        if name in seen:
            raise ConfigError(f"{place}: {key!r} stands twice; remove one")
        seen.add(name)
        yield _Written(by_name[name], _texts(by_name[name], value_node, place), f"{key} in {place}")


def _texts(flag: Flag, node: yaml.Node, place: str) -> tuple[str, ...]:
    """Return a node's text as it was written, so that YAML's own guesses at types play no part."""
    if flag.is_list and isinstance(node, yaml.SequenceNode):
        if all(isinstance(item, yaml.ScalarNode) for item in node.value):
            return tuple(str(item.value) for item in node.value)
    elif flag.kind is JSON and isinstance(node, yaml.MappingNode):
        return (json.dumps(yaml.safe_load(yaml.serialize(node))),)
    elif isinstance(node, yaml.ScalarNode):
        is_null = node.tag == "tag:yaml.org,2002:null"
        if flag.is_list:
            return () if is_null else (str(node.value),)
        return ("none",) if is_null else (str(node.value),)
    expected = "a list of values" if flag.is_list else "one value"
    raise ConfigError(f"{place}: {flag.name} needs {expected}")


def _redacted(flag: Flag, value: object) -> str:
    if flag.is_secret:
        return "***" if value else "none"
    text = ",".join(str(item) for item in value) if isinstance(value, tuple) else str(value)
    if value is None or not text:
        return "none" if flag.default_text in ("", "none") else "auto"
    return redact(text)
