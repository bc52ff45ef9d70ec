"""Checks that run a client's script with the client's interpreter and read its last line."""

import shutil
from collections.abc import Callable

from outcome import HERE, Bench, Outcome, told
from servers import KEY


def python_client(requirements: str, script: str, server: str) -> Callable[[Bench], Outcome]:
    """Return a check: `script` in the environment of `requirements-REQUIREMENTS.txt`, against a server."""

    def run(bench: Bench) -> Outcome:
        command = [bench.environments.python(requirements), HERE / script, bench.servers.url(server), KEY]
        return told(*bench.run(requirements, command))

    return run


def node_client(bench: Bench) -> Outcome:
    """Run the JavaScript client, in the folder that holds its modules."""
    folder = bench.environments.node()
    node = shutil.which("node") or "node"
    command = [node, HERE / "client_openai.mjs", bench.servers.url("demo"), KEY]
    return told(*bench.run("node", command, cwd=folder))
