"""What an operator may change while the server runs: key files, TLS files and the log level.

Key files are looked at every few seconds; SIGHUP reads everything again. What can't be read is logged, and
what was in force stays so; a key file without keys lets nobody in. On a terminal SIGHUP means that the
terminal has gone, and ends the server as ever.
"""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from mambad.engine.errors import ConfigError
from mambad.engine.logs import set_log_level
from mambad.server.access import KeyRing
from mambad.server.config import ServerConfig
from mambad.server.key_files import read_keys, stamp_of
from mambad.server.tls import Certificate

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class _KeySource:
    """Where the keys of a ring come from: those given as such, and a file."""

    ring: KeyRing
    fixed: tuple[str, ...]
    flag: str
    path: str | None


class Reloader:
    """Keeps the running server up to date with its files.

    Args:
        config: the settings at start.
        api_keys, admin_keys: the rings that its requests are checked against.
        certificate: the one in use, None without TLS.
        read_config: reads all sources of settings again; raises ConfigError.
        set_engine_level: tells the engine processes of a new log level.
    """

    def __init__(
        self,
        config: ServerConfig,
        api_keys: KeyRing,
        admin_keys: KeyRing,
        certificate: Certificate | None,
        read_config: Callable[[], ServerConfig],
        set_engine_level: Callable[[str], None],
    ) -> None:
        self._sources = [
            _KeySource(api_keys, config.api_key, "--api-key-file", config.api_key_file),
            _KeySource(admin_keys, config.admin_api_key, "--admin-api-key-file", config.admin_api_key_file),
        ]
        self._stamps = [stamp_of(source.path) for source in self._sources]
        self._certificate = certificate
        self._read_config = read_config
        self._set_engine_level = set_engine_level

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch the files, and take SIGHUP, until the block ends."""
        loop, takes_signal = asyncio.get_running_loop(), not sys.stdin.isatty()
        if takes_signal:
            loop.add_signal_handler(signal.SIGHUP, self.reload)
        watcher = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
            if takes_signal:
                loop.remove_signal_handler(signal.SIGHUP)

    def reload(self) -> None:
        """Read everything again."""
        self.poll(is_forced=True)
        try:
            if self._certificate is not None:
                self._certificate.load()
            level = self._read_config().log_level
        except ConfigError as error:
            logger.error("reloading: %s", error)
            return
        set_log_level(level)
        self._set_engine_level(level)
        logger.warning("keys, certificates and log level (%s) have been read again", level)

    def poll(self, is_forced: bool = False) -> None:
        """Read the key files that have changed, or all."""
        for index, source in enumerate(self._sources):
            stamp = stamp_of(source.path)
            if source.path is None or (stamp == self._stamps[index] and not is_forced):
                continue
            self._stamps[index] = stamp
            try:
                keys = source.fixed + read_keys(source.flag, source.path)
            except ConfigError as error:
                logger.error("keys stay as they were: %s", error)
                continue
            source.ring.replace(keys)
            logger.warning("%s: there are %d keys now", source.flag, len(keys))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            self.poll()
