"""What a user sees while the daemon starts and stops: warnings, progress, the plan, a command to try.

Writes to standard output what a person waits for, and to the log what an operator keeps.
"""

import asyncio
import json
import logging
import shlex
import sys
import time

from tqdm import tqdm

from mambad.engine.async_engine import AsyncEngine
from mambad.server.config import ServerConfig
from mambad.server.config_sources import LoadedConfig
from mambad.server.generation_config import describe
from mambad.server.settings import AppSettings, SamplingDefaults

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.1
LOG_INTERVAL_S = 5.0
_BAR = "{desc:<32.32} {percentage:3.0f}% |{bar:24}| {elapsed}"


def log_warnings(loaded: LoadedConfig) -> None:
    """Log what is odd about where the settings come from."""
    for warning in loaded.warnings:
        logger.warning(warning)


def log_configuration(loaded: LoadedConfig) -> None:
    """Log what the sources warn of, and the effective configuration once."""
    log_warnings(loaded)
    logger.info("settings: %s", loaded.describe(only_changed=True) or "all at their defaults")
    logger.debug("all settings: %s", loaded.describe(only_changed=False))


def log_sampling_defaults(defaults: SamplingDefaults) -> None:
    """Say what requests get that name no temperature and so on, if it is not what the API documents."""
    changed = describe(defaults)
    if changed:
        logger.info("sampling defaults (see --generation-config): %s", changed)


def warn_if_open(settings: AppSettings, url: str) -> None:
    """Say loudly that anybody who reaches the port may use the model."""
    if not settings.is_loopback and not settings.api_keys:
        logger.warning("*" * 78)
        logger.warning("%s is open to everybody who can reach it: no --api-key-file is set", url)
        logger.warning("*" * 78)


async def show_progress(engine: AsyncEngine) -> None:
    """Show what the engine is loading until it no longer is: a bar on a terminal, log lines elsewhere."""
    if sys.stderr.isatty():
        await _show_bar(engine)
        return
    next_s = 0.0
    while engine.status.phase == "loading":
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + LOG_INTERVAL_S
            share = engine.status.progress
            logger.info("loading: %s%s", engine.status.reason, "" if share is None else f", {share:.0%}")
        await asyncio.sleep(POLL_INTERVAL_S)


async def _show_bar(engine: AsyncEngine) -> None:
    with tqdm(total=1.0, bar_format=_BAR, ncols=79, nrows=20, leave=False) as bar:
        while engine.status.phase == "loading":
            bar.set_description_str(engine.status.reason, refresh=False)
            bar.n = engine.status.progress or 0.0
            bar.refresh()
            await asyncio.sleep(POLL_INTERVAL_S)


def announce(plan: tuple[str, ...], url: str, config: ServerConfig, settings: AppSettings) -> None:
    """Print the plan, where the server listens, and a command to try it."""
    print(*plan, f"mambad: listening on {url}", f"try: {first_command(url, config, settings)}", sep="\n")
    sys.stdout.flush()


def announce_draining(num_requests: int, timeout_s: float) -> None:
    """Say what a first signal does and a second one would."""
    print(
        f"mambad: draining {num_requests} requests, up to {timeout_s:g} s; Ctrl-C again stops now", flush=True
    )


def first_command(url: str, config: ServerConfig, settings: AppSettings) -> str:
    """Return a curl command that streams a completion from this server."""
    words = ["curl", "-N"]
    if config.uds is not None:
        words += ["--unix-socket", config.uds]
        url = "http://localhost" if config.ssl_certfile is None else "https://localhost"
    if config.ssl_certfile is not None:
        words += ["--cacert", config.ssl_certfile]
    body = {"model": settings.model_name, "prompt": "Now is the winter", "max_tokens": 64, "stream": True}
    words += [f"{url}/v1/completions", "-H", "Content-Type: application/json"]
    command = shlex.join(words)
    if settings.api_keys:
        command += ' -H "Authorization: Bearer $MAMBAD_API_KEY"'
    return f"{command} -d {shlex.quote(json.dumps(body))}"
