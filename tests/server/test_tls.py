"""Answers over TLS, certificates that can't be used, and a new one while the server runs."""

import asyncio
import shutil
import socket
import ssl
import subprocess

import pytest

from mambad.engine.errors import ConfigError
from mambad.server.config import ServerConfig
from mambad.server.daemon import HttpConfig, HttpServer
from mambad.server.listen import describe, open_sockets
from mambad.server.protocol import HttpProtocol
from mambad.server.tls import Certificate, certificate_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with"),
]


@pytest.fixture
def anyio_backend():
    return "asyncio"


def make(folder, name, *extra):
    """Make a certificate for localhost; returns the paths of it and of its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-days",
        "2",
    ]
    command += ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost", *(extra or ("-nodes",))]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return str(cert), str(key)


async def answer(scope, receive, send):
    headers = [(b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": scope["scheme"].encode()})


async def fetch(port, cafile):
    """Return what a client that trusts `cafile` alone gets, and whom it talked to."""
    trust = ssl.create_default_context(cafile=cafile)
    reader, writer = await asyncio.open_connection("localhost", port, ssl=trust, server_hostname="localhost")
    writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    content = await reader.read()
    name = dict(pair[0] for pair in writer.get_extra_info("peercert")["subject"])["commonName"]
    writer.close()
    await writer.wait_closed()
    return content.rpartition(b"\r\n")[2], name


async def test_a_certificate_is_used_and_can_be_replaced(tmp_path):
    first, second = make(tmp_path, "first"), make(tmp_path, "second")
    paths = [str(tmp_path / "live.pem"), str(tmp_path / "live.key")]
    for source, target in zip(first, paths, strict=True):
        shutil.copy(source, target)
    certificate = Certificate(*paths)
    config = HttpConfig(
        answer, http=HttpProtocol, ws="none", lifespan="off", log_config=None, access_log=False
    )
    config.tls = certificate.context
    sockets = open_sockets(ServerConfig(port=0, host="localhost"))
    port = sockets[0].getsockname()[1]
    server = HttpServer(config)
    task = asyncio.create_task(server.serve(sockets))
    async with asyncio.timeout(10):
        while not server.started:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)
        assert await fetch(port, first[0]) == (b"https", "first")
        for source, target in zip(second, paths, strict=True):
            shutil.copy(source, target)
        certificate.load()
        assert await fetch(port, second[0]) == (b"https", "second")
        with pytest.raises(ssl.SSLCertVerificationError):
            await fetch(port, first[0])
        shutil.copy(first[0], paths[0])
        with pytest.raises(ConfigError, match="--ssl-certfile"):
            certificate.load()
        assert await fetch(port, second[0]) == (b"https", "second")
        server.should_exit = True
        await task


def test_what_can_not_be_used_is_one_line(tmp_path):
    cert, key = make(tmp_path, "good")
    other_cert, _ = make(tmp_path, "other")
    locked = make(tmp_path, "locked", "-passout", "pass:secret")
    for pair in ((other_cert, key), (cert, None), (str(tmp_path / "gone"), key), (key, key), locked):
        with pytest.raises(ConfigError, match=r"^--ssl-certfile: .* can't be used: .+$"):
            Certificate(*pair)
    with pytest.raises(ConfigError, match="--ssl-keyfile needs --ssl-certfile"):
        certificate_of(None, key)
    assert certificate_of(None, None) is None
    assert certificate_of(cert, key) is not None


def test_the_url_says_so():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        assert describe([sock], ServerConfig(ssl_certfile="x.pem")) == f"https://127.0.0.1:{port}"
