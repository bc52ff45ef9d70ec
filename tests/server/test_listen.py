"""Opening the port before anything slow starts."""

import dataclasses
import socket
import stat

import pytest

from mambad.engine.errors import ConfigError
from mambad.server.config import ServerConfig
from mambad.server.listen import describe, is_loopback, open_sockets

ANY_PORT = ServerConfig(port=0)


def close(sockets: list[socket.socket]) -> None:
    for opened in sockets:
        opened.close()


def test_port_0_takes_a_free_one_and_says_which():
    sockets = open_sockets(ANY_PORT)
    port = sockets[0].getsockname()[1]
    assert port > 0
    assert describe(sockets, ANY_PORT) == f"http://127.0.0.1:{port}"
    with socket.create_connection(("127.0.0.1", port)):
        pass
    close(sockets)


def test_a_used_port_is_reported_with_its_number():
    sockets = open_sockets(ANY_PORT)
    port = sockets[0].getsockname()[1]
    with pytest.raises(ConfigError, match=f"--port {port} is in use on 127.0.0.1; .* choose another"):
        open_sockets(ServerConfig(port=port))
    close(sockets)


def test_a_port_can_be_taken_again_at_once():
    sockets = open_sockets(ANY_PORT)
    port = sockets[0].getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        accepted, _ = sockets[0].accept()
        accepted.close()  # leaves the server's side in TIME_WAIT
    close(sockets)
    close(open_sockets(ServerConfig(port=port)))


def test_all_addresses_of_a_name_share_one_port():
    config = dataclasses.replace(ANY_PORT, host="localhost")
    sockets = open_sockets(config)
    assert len({opened.getsockname()[1] for opened in sockets}) == 1
    assert is_loopback(sockets)
    close(sockets)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_explained(host):
    with pytest.raises(ConfigError, match=f"--host {host}") as caught:
        open_sockets(dataclasses.replace(ANY_PORT, host=host))
    assert "\n" not in str(caught.value)


def test_every_address_is_no_loopback():
    config = dataclasses.replace(ANY_PORT, host="0.0.0.0")
    sockets = open_sockets(config)
    assert not is_loopback(sockets)
    assert describe(sockets, config).startswith("http://0.0.0.0:")
    close(sockets)


def test_ipv6_addresses_stand_in_brackets():
    config = dataclasses.replace(ANY_PORT, host="::1")
    try:
        sockets = open_sockets(config)
    except ConfigError:
        pytest.skip("this machine has no IPv6 loopback")
    assert describe(sockets, config) == f"http://[::1]:{sockets[0].getsockname()[1]}"
    close(sockets)


def test_a_stale_unix_socket_is_replaced_and_a_live_one_is_not(tmp_path):
    config = ServerConfig(uds=str(tmp_path / "mambad.sock"))
    first = open_sockets(config)
    assert is_loopback(first)
    assert describe(first, config) == f"unix:{config.uds}"
    with pytest.raises(ConfigError, match=r"--uds .*mambad.sock: Address already in use"):
        open_sockets(config)
    close(first)  # the file stays
    close(open_sockets(config))


def test_a_file_in_the_way_of_a_unix_socket_is_kept(tmp_path):
    path = tmp_path / "precious"
    path.write_text("data", encoding="utf-8")
    with pytest.raises(ConfigError, match="--uds"):
        open_sockets(ServerConfig(uds=str(path)))
    assert stat.S_ISREG(path.stat().st_mode)
