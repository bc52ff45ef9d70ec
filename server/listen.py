"""The listening sockets, opened before anything slow starts, so that a used port is reported at once.

Owns binding and what can go wrong with it. The sockets are handed to the HTTP server.
"""

import errno
import ipaddress
import os
import socket
import stat
from pathlib import Path

from mambad.engine.errors import ConfigError
from mambad.server.config import ServerConfig

BACKLOG = 2048


def open_sockets(config: ServerConfig) -> list[socket.socket]:
    """Bind and listen where `uds`, or `host` and `port`, say; port 0 takes any free one.

    Raises:
        ConfigError: the address is unknown, used or not allowed.
    """
    if config.uds is not None:
        return [_open_unix(Path(config.uds))]
    addresses = _addresses(config)
    sockets: list[socket.socket] = []
    port = config.port
    try:
        for family, host in addresses:
            sockets.append(_open_tcp(family, host, port))
            port = int(sockets[-1].getsockname()[1])  # one port for all addresses of a name
    except OSError as error:
        for opened in sockets:
            opened.close()
        raise ConfigError(_explain(error, config)) from None
    return sockets


def describe(sockets: list[socket.socket], config: ServerConfig) -> str:
    """Return the URL of the server: `http://HOST:PORT`, `https://HOST:PORT`, or `unix:PATH`."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    host = f"[{config.host}]" if ":" in config.host else config.host
    scheme = "http" if config.ssl_certfile is None else "https"
    return f"{scheme}://{host}:{sockets[0].getsockname()[1]}"


def is_loopback(sockets: list[socket.socket]) -> bool:
    """Whether only this machine can reach all of the sockets."""
    return all(
        opened.family == socket.AF_UNIX or ipaddress.ip_address(opened.getsockname()[0]).is_loopback
        for opened in sockets
    )


def would_be_loopback(config: ServerConfig) -> bool:
    """Whether only this machine could reach all that `open_sockets` would open. Opens nothing.

    Raises:
        ConfigError: the address is unknown.
    """
    return config.uds is not None or all(
        ipaddress.ip_address(host).is_loopback for _, host in _addresses(config)
    )


def _addresses(config: ServerConfig) -> list[tuple[int, str]]:
    """Return family and address of each that the host stands for."""
    try:
        found = socket.getaddrinfo(
            config.host or None, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ConfigError(f"--host {config.host}: no such address ({error.strerror})") from None
    return list(dict.fromkeys((int(family), str(address[0])) for family, _, _, _, address in found))


def _open_tcp(family: int, host: str, port: int) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # `::` means every address of both families; anything else is its own.
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        opened.bind((host, port))
        opened.listen(BACKLOG)
    except OSError:
        opened.close()
        raise
    return opened


def _open_unix(path: Path) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        opened.bind(str(path))
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise ConfigError(f"--uds {path}: {error.strerror or error}; choose another path") from None
    return opened


def _remove_stale(path: Path) -> None:
    """Remove a socket file that nobody listens on; raises OSError if somebody does."""
    if not path.exists() or not stat.S_ISSOCK(path.stat().st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(str(path)) == 0:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    path.unlink()


def _explain(error: OSError, config: ServerConfig) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"--port {config.port} is in use on {config.host}; stop what listens there, or choose another"
    if error.errno == errno.EACCES:
        return f"--port {config.port} needs privileges; choose one from 1024 on"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {config.host} is no address of this machine; 0.0.0.0 listens on all of them"
    return f"can't listen on {config.host} port {config.port}: {error.strerror}"
