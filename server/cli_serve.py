"""`mambad serve [MODEL]`: read the settings, open the port, find the model, run the daemon."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import uvloop

from mambad.engine.async_engine import AsyncEngine
from mambad.engine.logs import set_up_logging
from mambad.server.access_log import AccessLog
from mambad.server.app import create_app
from mambad.server.chat_template_files import load_chat_templates
from mambad.server.cli import COMMANDS
from mambad.server.cli_output import announce, log_configuration, log_sampling_defaults, warn_if_open
from mambad.server.cli_parser import parse_settings
from mambad.server.config import FLAGS, ServerConfig
from mambad.server.config_parts import app_settings, engine_config, queue_limits
from mambad.server.config_sources import load_config
from mambad.server.context import AppContext
from mambad.server.daemon import Daemon
from mambad.server.listen import describe, is_loopback, open_sockets
from mambad.server.model_source import ModelSource, find_model
from mambad.server.reload import Reloader
from mambad.server.request_record import add_request_fields
from mambad.server.throughput_log import ThroughputLog
from mambad.server.tls import certificate_of
from mambad.server.tokenizer_files import load_tokenizer
from mambad.server.tracing import Tracer, make_tracer


def run(words: Sequence[str]) -> int:
    """Serve until a signal; returns the exit code.

    Raises:
        ConfigError, LoadError: a setting or the model can't work.
    """
    description = "Serve a model over an OpenAI-compatible API."
    arguments, file = parse_settings("serve", description, FLAGS, words)

    def read_config() -> ServerConfig:
        return load_config(arguments, os.environ, file).config

    loaded = load_config(arguments, os.environ, file)
    config = loaded.config
    set_up_logging(config.log_level, config.log_format, add_request_fields)
    log_configuration(loaded)
    with ExitStack() as cleanup:
        tracer = make_tracer(config.otlp_traces_endpoint)
        if tracer is not None:
            cleanup.callback(tracer.shut_down)
        sockets = open_sockets(config)
        for opened in sockets:
            cleanup.callback(opened.close)
        if config.uds is not None:
            cleanup.callback(Path(config.uds).unlink, missing_ok=True)
        source = find_model(config, tuple(COMMANDS))
        runner = cleanup.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        return runner.run(_serve(config, source, sockets, read_config, tracer))


async def _serve(
    config: ServerConfig,
    source: ModelSource,
    sockets: list[socket.socket],
    read_config: Callable[[], ServerConfig],
    tracer: Tracer | None,
) -> int:
    url = describe(sockets, config)
    settings = app_settings(config, source, is_loopback(sockets))
    certificate = certificate_of(config.ssl_certfile, config.ssl_keyfile)
    warn_if_open(settings, url)
    log_sampling_defaults(settings.sampling_defaults)
    tokenizer = load_tokenizer(source.tokenizer_folder)
    templates = load_chat_templates(source.tokenizer_folder, config.chat_template)
    engine = AsyncEngine(engine_config(config, source), queue_limits(config))
    app = create_app(engine, tokenizer, settings, templates)
    access_log = AccessLog(app, config.disable_access_log_for_endpoints, tracer)
    daemon = Daemon(
        engine,
        access_log,
        sockets,
        drain_grace_s=config.drain_grace,
        shutdown_timeout_s=config.shutdown_timeout,
        on_ready=lambda info: announce(info.plan, url, config, settings),
        tls=None if certificate is None else certificate.context,
    )
    context: AppContext = app.state.context
    reloader = Reloader(
        config, context.api_keys, context.admin_keys, certificate, read_config, engine.set_log_level
    )
    async with reloader.watching(), ThroughputLog(engine, settings.model_name).running():
        try:
            return await daemon.run()
        finally:
            await access_log.flush()
