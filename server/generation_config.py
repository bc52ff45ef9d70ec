"""Defaults of sampling: what counts where a request names no temperature, top_p and so on.

They come from the model's `generation_config.json`, as in vLLM, unless `--generation-config` says otherwise,
and from `--override-generation-config`, which wins. Keys that are no such defaults are passed over.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson

from mambad.engine.errors import ConfigError
from mambad.server.settings import SamplingDefaults

FILE_NAME = "generation_config.json"
NO_FILE = ("vllm", "none")
RANGES = {
    "temperature": (float, 0.0, 2.0),
    "top_p": (float, 1e-9, 1.0),
    "top_k": (int, -1, 2**31),
    "min_p": (float, 0.0, 1.0),
    "repetition_penalty": (float, 0.01, 100.0),
    "max_new_tokens": (int, 1, 2**31),
}


def sampling_defaults(choice: str, override: str | None, folder: Path) -> SamplingDefaults:
    """Return the defaults.

    Args:
        choice: `auto` = the model's own file, `vllm` = no file, else a folder that holds such a file.
        override: a JSON object.
        folder: of the model.

    Raises:
        ConfigError: a file or value can't be used.
    """
    values: dict[str, Any] = {}
    if choice not in NO_FILE:
        path = (folder if choice == "auto" else Path(choice).expanduser()) / FILE_NAME
        if path.is_file():
            values |= _checked(_object(path.read_bytes(), str(path)), str(path))
        elif choice != "auto":
            raise ConfigError(f"--generation-config: there is no {path}")
    if override is not None:
        flag = "--override-generation-config"
        values |= _checked(_object(override.encode(), flag), flag)
    return SamplingDefaults(**values)


def describe(defaults: SamplingDefaults) -> str:
    """Name the defaults that are not the usual ones, as `name=value`; empty if there are none."""
    usual = SamplingDefaults()
    names = [field.name for field in fields(defaults)]
    changed = [name for name in names if getattr(defaults, name) != getattr(usual, name)]
    return " ".join(f"{name}={getattr(defaults, name)}" for name in changed)


def _object(raw: bytes, place: str) -> dict[str, Any]:
    try:
        content = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{place}: no valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{place}: expected a JSON object")
    return content


def _checked(content: Mapping[str, Any], place: str) -> dict[str, Any]:
    values = {}
    for name, (kind, least, most) in RANGES.items():
        value = content.get(name)
        if value is None:
            continue
        is_number = type(value) is int or (kind is float and type(value) is float)
        if not is_number or not least <= value <= most:
            raise ConfigError(f"{place}: {name} is {value!r}, expected a number from {least:g} to {most:g}")
        values[name] = kind(max(value, 0)) if name == "top_k" else kind(value)
    return values
