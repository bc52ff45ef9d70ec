"""Starts the image that buildah built, locked down, and asks it what an operator would: part of `make image`.

As root, with runc: one processor, 1 GiB, a user id that the image does not know, no capability, no new
privileges, a read-only root and a writable /tmp, nothing else. It must become ready, answer, pass its own
health check, be unable to write anywhere else, and end with exit code 0 after SIGTERM. Prints the time to
ready and the memory; layers.py has the sizes. An image of a Docker engine is not looked at: docs/docker.md
has the command that starts it so.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "build/image"
TAG = "mambad:cpu"
USER = {"uid": 54321, "gid": 0}
NAME = f"mambad-image-check-{os.getpid()}"
MEMORY_BYTES = 1 << 30
READY_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
BUILDAH = (
    "buildah", "--root", str(FOLDER / "store"), "--runroot", str(FOLDER / "run"),
    "--storage-driver", os.environ.get("STORAGE_DRIVER", "overlay"),
)  # fmt: skip
RUNC = ("runc", "--root", str(FOLDER / "runc"))
COMPILERS = ("cc", "gcc", "clang", "ld", "as", "make")


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def expect(is_true: bool, text: str) -> None:
    """Print what holds, or end with what does not."""
    if not is_true:
        sys.exit(f"mambad: error: the image fails its check: {text}")
    say(f"  ok    {text}")


def call(*words: str) -> str:
    """Return the output of a command that must work."""
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def image_root() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Mount the image; yields the folder and the image's configuration."""
    container = call(*BUILDAH, "from", "--pull-never", TAG)
    try:
        root = Path(call(*BUILDAH, "mount", container))
        yield root, json.loads(call(*BUILDAH, "inspect", "--type", "image", TAG))["Docker"]["config"]
    finally:
        call(*BUILDAH, "rm", container)


def bundle(root: Path, config: dict[str, Any], port: int) -> dict[str, Any]:
    """Return an OCI runtime configuration: the image's command, locked down. The network is the host's."""
    tmpfs = {"type": "tmpfs", "source": "tmpfs"}
    quiet = ["nosuid", "noexec", "nodev"]
    return {
        "ociVersion": "1.0.2",
        "root": {"path": str(root), "readonly": True},
        "process": {
            "user": USER,
            "args": [*config["Entrypoint"], *config["Cmd"], "--port", str(port)],
            "env": config["Env"],
            "cwd": config["WorkingDir"],
            "capabilities": {},
            "noNewPrivileges": True,
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": quiet},
            {"destination": "/dev", **tmpfs, "options": ["nosuid", "strictatime", "mode=755", "size=64k"]},
            {"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "ro", *quiet]},
            {"destination": "/tmp", **tmpfs, "options": [*quiet, "mode=1777", "size=1g"]},
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")],
            "resources": {"cpu": {"quota": 100_000, "period": 100_000}, "memory": {"limit": MEMORY_BYTES}},
        },
    }


@contextlib.contextmanager
def running(configuration: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a container; yields runc, whose exit code is the container's."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        (Path(folder) / "config.json").write_text(json.dumps(configuration), encoding="utf-8")
        process = subprocess.Popen([*RUNC, "run", "--bundle", folder, NAME], stdin=subprocess.DEVNULL)
        try:
            yield process
        finally:
            if process.poll() is None:
                subprocess.run([*RUNC, "delete", "--force", NAME], check=False)
                process.wait(STOP_TIMEOUT_S)


def inside(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the container, as its user."""
    return subprocess.run([*RUNC, "exec", NAME, *words], capture_output=True, text=True, check=False)


def ask(url: str, body: object = None) -> str:
    """Return the answer's text.

    Raises:
        urllib.error.URLError: no connection, or a status that is no success.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait for /ready."""
    end = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            ask(f"{url}/ready")
            return
        time.sleep(0.02)
    sys.exit(f"mambad: error: the image fails its check: not ready (exit code {process.poll()})")


def family(pid: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from family(int(child))


def memory() -> Iterator[tuple[str, int, int]]:
    """Yield name, resident and proportional memory in bytes of each process of the container."""
    for pid in family(int(json.loads(call(*RUNC, "state", NAME))["pid"])):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        sizes = {line.split(":")[0]: line.split()[1] for line in lines[1:]}
        name = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
        yield name, int(sizes["Rss"]) * 1024, int(sizes["Pss"]) * 1024


def series(url: str, name: str) -> str:
    """Return the first line of a metric, labels and value."""
    return next(line for line in ask(f"{url}/metrics").splitlines() if line.startswith(f"{name}{{"))


def check_answers(url: str) -> None:
    """Completion, structured output, metrics."""
    completion = {"model": "demo", "prompt": "Now is the winter", "max_tokens": 16, "ignore_eos": True}
    choice = json.loads(ask(f"{url}/v1/completions", completion))["choices"][0]
    expect(choice["text"] != "", f"completes: {choice['text']!r}")
    end = time.monotonic() + 5  # counters arrive with the engine's next report
    while (tokens := float(series(url, "mambad_generation_tokens_total").split()[-1])) < 16:
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    expect(tokens == 16, "counts tokens in /metrics")
    grammar = {"model": "demo", "prompt": "Yes or no?", "structured_outputs": {"choice": ["yes", "no"]}}
    text = json.loads(ask(f"{url}/v1/completions", grammar))["choices"][0]["text"]
    expect(text in ("yes", "no"), f"keeps to a grammar: {text!r}")
    level = series(url, "mambad_engine_info").partition('kernels="')[2].partition('"')[0]
    expect(level.startswith("cpu-"), f"computes with the C kernels: {level}")
    threads = float(series(url, "mambad_threads").split()[-1])
    expect(threads == 1, "computes with as many threads as it has processors")


def check_confinement(root: Path) -> None:
    """Who runs it, what it can write, what is not in it."""
    user = inside("id", "-u").stdout.strip()
    expect(user == str(USER["uid"]), f"runs as user {user}, whom the image does not know")
    health = inside("python3", "-I", "/app/healthcheck.py")
    expect(health.returncode == 0, f"passes its health check {health.stderr}".rstrip())
    code = "import os, sys; sys.exit(not any(os.access(p, os.W_OK) for p in sys.argv[1:]))"
    places = ("/", "/app", "/app/bin", "/etc", "/usr", "/var/tmp", "/home", "/run")
    expect(inside("python3", "-c", code, *places).returncode == 1, "can't write outside /tmp")
    expect(inside("python3", "-c", code, "/tmp").returncode == 0, "can write to /tmp")
    path = [root / folder for folder in ("usr/local/bin", "usr/bin", "bin", "app/bin")]
    found = [name for name in COMPILERS if any((folder / name).exists() for folder in path)]
    expect(found == [], f"has no compiler {found or ''}".rstrip())
    left = [name for name in ("etc/pip.conf", "run/secrets", "pip", "source") if (root / name).exists()]
    expect(left == [], f"has nothing left of its build {left or ''}".rstrip())


def check_stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, as `docker stop` sends it."""
    call(*RUNC, "kill", NAME, "TERM")
    expect(process.wait(STOP_TIMEOUT_S) == 0, "ends with exit code 0 after SIGTERM")


def check(root: Path, config: dict[str, Any]) -> None:
    """Start the container and go through all of it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    started = time.monotonic()
    with running(bundle(root, config, port)) as process:
        until_ready(url, process)
        took = time.monotonic() - started
        idle = list(memory())
        steps: tuple[Callable[[], None], ...] = (
            lambda: check_answers(url),
            lambda: check_confinement(root),
        )
        for step in steps:
            step()
        after = list(memory())
        check_stop(process)
    say(f"time to ready: {took:.1f} s")
    for when, found in (("ready", idle), ("after the requests", after)):
        say(f"memory when {when}: {sum(pss for _, _, pss in found) / 2**20:.0f} MiB (Pss of all processes)")
        for name, rss, pss in found:
            say(f"  {rss / 2**20:6.0f} MiB resident, {pss / 2**20:6.0f} MiB Pss  {name[:80]}")


def main() -> int:
    """Check the image of buildah's store, if there is one."""
    if not (FOLDER / "store").exists():
        say("mambad:cpu was built by a Docker engine; docs/docker.md says how to run it")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with image_root() as (root, config):
        check(root, config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
