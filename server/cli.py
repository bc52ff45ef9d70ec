"""Entry point `mambad`: picks the sub-command and turns faults into exit codes.

Exit codes: 0 done; 2 wrong usage, configuration or model, said in one line; 1 anything else. The commands
stand in `cli_<command>.py` and are imported only when asked for, so that `mambad --version` is quick.
"""

import importlib
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version

from mambad.engine.errors import ConfigError, LoadError
from mambad.engine.logs import redact

COMMANDS = {
    "serve": "serve a model (the default command)",
    "check": "say what a model needs and whether it can be served; loads no weights",
    "complete": "stream a completion from a running server",
    "chat": "talk to the model of a running server",
    "bench": "measure a running server (bench serve) or the engine alone (bench offline)",
    "version": "print versions, device and kernels",
    "collect-env": "print what a bug report should say of this machine",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; `arguments` defaults to the process's own. Returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words in ([], ["--help"], ["-h"], ["help"]):
        print(_overview())
        return 0
    if words == ["--version"]:
        print(f"mambad {version('mambad')}")
        return 0
    # A first word that is no command is the model, or a flag, of `serve`.
    command = words.pop(0) if words[0] in COMMANDS else "serve"
    try:
        code: int = importlib.import_module(f"mambad.server.cli_{command.replace('-', '_')}").run(words)
    except (ConfigError, LoadError) as error:
        print(f"mambad: error: {redact(str(error))}", file=sys.stderr)
        logging.getLogger(__name__).debug("where it happened", exc_info=True)
        return 2
    except KeyboardInterrupt:
        return 1
    return code


def _overview() -> str:
    lines = ["usage: mambad [COMMAND] ...", "", "commands:"]
    lines += [f"  {name:<12} {text}" for name, text in COMMANDS.items()]
    lines += [
        "",
        "`mambad COMMAND --help` lists its flags. `mambad MODEL` is short for `mambad serve MODEL`.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
