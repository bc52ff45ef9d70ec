"""Keys, and files that hold them, one a line: read at start, and again whenever they change."""

import re
from collections.abc import Sequence
from pathlib import Path

from mambad.engine.errors import ConfigError

_POSSIBLE = re.compile("[ -~]+")


def checked(where: str, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys.

    Raises:
        ConfigError: one can't stand in a header as it is, so that no client could ever send it.
    """
    for number, key in enumerate(keys, 1):
        if not _POSSIBLE.fullmatch(key):
            text = f"{where}: key {number} has characters that are not ASCII, which no client can send"
            raise ConfigError(text)
    return tuple(keys)


def read_keys(flag: str, path: str | None) -> tuple[str, ...]:
    """Return the lines of a key file; blank lines and lines that start with # do not count.

    Raises:
        ConfigError: the file can't be read, or holds what no key can be.
    """
    if path is None:
        return ()
    try:
        lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{flag}: {path} can't be read: {error}") from None
    return checked(f"{flag}: {path}", [line for line in lines if line and not line.startswith("#")])


def require_keys(flag: str, path: str | None) -> tuple[str, ...]:
    """Return the keys of a file, if one is named.

    Raises:
        ConfigError: the file can't be read, or holds no key.
    """
    keys = read_keys(flag, path)
    if path is not None and not keys:
        raise ConfigError(f"{flag}: {path} holds no key; write one a line")
    return keys


def stamp_of(path: str | None) -> tuple[int, ...] | None:
    """Return what changes when a file does; None if there is no such file."""
    try:
        found = Path(path).stat() if path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)
