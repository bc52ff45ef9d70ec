"""`mambad check [MODEL]`: whether a model can be served here, and what it takes. Loads no weights.

The one command besides `version` that imports the engine's torch half into its own process.
"""

import os
from collections.abc import Sequence

from mambad.engine.logs import set_up_logging
from mambad.server.chat_template_files import load_chat_templates
from mambad.server.cli import COMMANDS
from mambad.server.cli_output import log_warnings
from mambad.server.cli_parser import parse_settings
from mambad.server.config import FLAGS
from mambad.server.config_parts import app_settings, engine_config
from mambad.server.config_sources import load_config
from mambad.server.listen import would_be_loopback
from mambad.server.model_source import find_model
from mambad.server.tls import certificate_of
from mambad.server.tokenizer_files import load_tokenizer
from mambad.server.tracing import make_tracer


def run(words: Sequence[str]) -> int:
    """Print the plan; returns the exit code. Takes what `serve` takes, and opens no port.

    Raises:
        ConfigError, LoadError: the model can't be served with these settings.
    """
    description = "Verify settings, files and that every weight has a place, and print the plan of serving."
    arguments, file = parse_settings("check", description, FLAGS, words)
    loaded = load_config(arguments, os.environ, file)
    settings = loaded.config
    set_up_logging(settings.log_level, settings.log_format)
    log_warnings(loaded)
    source = find_model(settings, tuple(COMMANDS))
    # Takes a second: torch.
    from mambad.engine.build import plan_engine

    plan = plan_engine(engine_config(settings, source))
    app_settings(settings, source, would_be_loopback(settings))
    certificate_of(settings.ssl_certfile, settings.ssl_keyfile)
    tracer = make_tracer(settings.otlp_traces_endpoint)
    if tracer is not None:
        tracer.shut_down()
    load_tokenizer(source.tokenizer_folder)
    load_chat_templates(source.tokenizer_folder, settings.chat_template)
    print("\n".join(plan.lines()))
    return 0
