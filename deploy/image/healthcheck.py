"""The image's HEALTHCHECK: exit code 0 when `/live` answers 200, else 1 and one line.

Asks the server where its own settings put it: flags of process 1 before `MAMBAD_*`, before the defaults. A
`--config` file is not read: set MAMBAD_PORT where that file moves the port. Standard library only, and
nothing of mambad, so that it is quick. Certificates are not verified: it is this container's own server.
"""

import http.client
import os
import socket
import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TIMEOUT_S = 4
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket, whose path is the host's name."""

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self.host)


def setting(name: str, words: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return what the server was given for `--name`, by flag or else by environment; "" if nothing.

    A `tcp://…` from Kubernetes' service links counts as nothing, as it does for the server.
    """
    flag = f"--{name}"
    for position, word in enumerate(words):
        if word == flag and position + 1 < len(words):
            return words[position + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    text = environment.get(f"MAMBAD_{name.replace('-', '_').upper()}", "")
    return "" if text.startswith("tcp://") else text


def connection(words: Sequence[str], environment: Mapping[str, str]) -> http.client.HTTPConnection:
    """Return a connection, not yet open, to the server that these words and variables start."""
    if path := setting("uds", words, environment):
        return UnixConnection(path)
    host = setting("host", words, environment)
    host, port = LOOPBACK.get(host, host), int(setting("port", words, environment) or 8000)
    if setting("ssl-certfile", words, environment):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
    return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)


def main() -> int:
    """Ask once; return the exit code."""
    words = Path("/proc/1/cmdline").read_bytes().decode(errors="replace").split("\0")
    try:
        server = connection(words, os.environ)
        server.request("GET", "/live")
        status = server.getresponse().status
    except (OSError, ValueError, http.client.HTTPException) as error:
        sys.stderr.write(f"/live can't be asked: {error}\n")
        return 1
    if status != 200:
        sys.stderr.write(f"/live answered {status}\n")
    return 0 if status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
