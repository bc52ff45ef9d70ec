"""HAProxy and nginx from Debian, as `deploy/proxy/` configures them, on free ports of this machine.

A test that needs one is skipped where it is not installed, but fails in CI (environment variable CI).
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "proxy"
PROXIES = ("haproxy", "nginx")
PLACES = ("127.0.0.1:8080", "127.0.0.1:8001", "127.0.0.1:8002")
"""Where both files say that the proxy and its two servers are."""


def path_of(program: str) -> str | None:
    """Return where a program is; Debian puts these two where only root looks."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def require(program: str) -> None:
    """Skip the test where a program is missing; fail it in CI."""
    if path_of(program) is None:
        if os.environ.get("CI"):
            pytest.fail(f"CI lacks {program}: is it in .ci/packages.txt?")
        pytest.skip(f"{program} is not installed")


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on."""
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in opened]
    for each in opened:
        each.close()
    return ports


@contextmanager
def proxy(program: str, first: int, second: int) -> Iterator[str]:
    """Run HAProxy or nginx before the servers at two ports; yields its URL. It ends with the block."""
    (front,) = free_ports(1)
    places = [f"127.0.0.1:{port}" for port in (front, first, second)]
    found = path_of(program)
    assert found is not None, f"{program} is not installed"
    with tempfile.TemporaryDirectory(prefix="mambad-proxy-") as folder, open(f"{folder}/log", "w+") as log:
        process = subprocess.Popen(
            [found, *_arguments(program, Path(folder), places)],
            env={**os.environ, **_environment(places)},
            stdout=log,
            stderr=log,
        )
        try:
            _wait_for(front, process, Path(log.name))
            yield f"http://{places[0]}"
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment(places: list[str]) -> dict[str, str]:
    return dict(zip(("MAMBAD_BIND", "MAMBAD_A", "MAMBAD_B"), places, strict=True))


def _arguments(program: str, folder: Path, places: list[str]) -> list[str]:
    """HAProxy takes the file as it is; nginx knows no environment, so its addresses are replaced."""
    if program == "haproxy":
        return ["-db", "-f", str(FOLDER / "haproxy.cfg")]
    text = (FOLDER / "nginx.conf").read_text()
    for place, wanted in zip(PLACES, places, strict=True):
        assert place in text
        text = text.replace(place, wanted)
    text = text.replace("/tmp/mambad-nginx.pid", f"{folder}/pid")
    (folder / "nginx.conf").write_text(text)
    return ["-c", str(folder / "nginx.conf"), "-p", str(folder)]


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 10
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
