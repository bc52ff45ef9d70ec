"""`mambad collect-env`: all that a bug report should say of this machine. Prints no secret.

Asks the operating system only; nothing is sent anywhere.
"""

import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path

from mambad.engine.cgroup import allowed_threads
from mambad.engine.logs import redact
from mambad.server.cli_parser import Parser
from mambad.server.cli_version import run as show_version
from mambad.server.config import FLAGS
from mambad.server.config_sources import OTHER_VARIABLES
from mambad.server.flag import ENV_PREFIX

CPU_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "LD_PRELOAD", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES")
CGROUP_FILES = ("cpu.max", "memory.max", "memory.current")
GIB = 2**30


def run(words: Sequence[str]) -> int:
    """Print versions, processor, memory, limits, environment and packages; returns the exit code."""
    parser = Parser(prog="mambad collect-env", description="Print what a bug report should say.")
    parser.parse_strictly(words)
    show_version(())
    for title, lines in (
        ("machine", _machine()),
        ("limits", _limits()),
        ("environment", _environment()),
        ("packages", _packages()),
    ):
        print(f"\n{title}:", *lines, sep="\n  ")
    return 0


def _machine() -> Iterator[str]:
    yield f"system: {platform.platform()}"
    info = _read("/proc/cpuinfo").splitlines()
    fields = dict(line.replace("\t", "").split(":", 1) for line in info if ":" in line)
    yield f"processor: {fields.get('model name', platform.processor()).strip()}, {os.cpu_count()} threads"
    found = set(fields.get("flags", "").split())
    yield f"instructions: {' '.join(flag for flag in CPU_FLAGS if flag in found) or 'unknown'}"
    memory = dict(line.split(":", 1) for line in _read("/proc/meminfo").splitlines() if ":" in line)
    for name in ("MemTotal", "MemAvailable"):
        kib = int(memory.get(name, "0").split()[0])
        yield f"{name}: {kib * 1024 / GIB:.1f} GiB"
    compiler = shutil.which("gcc")
    yield f"compiler: {_first_line([compiler, '--version']) if compiler else 'none'}"


def _limits() -> Iterator[str]:
    threads = allowed_threads(os.environ)
    yield f"threads: {threads.amount} ({threads.reason})"
    yield f"open files: {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}"
    for name in CGROUP_FILES:
        text = _read(f"/sys/fs/cgroup/{name}").strip()
        if text:
            yield f"cgroup {name}: {text}"


def _environment() -> Iterator[str]:
    shown = {*VARIABLES, *OTHER_VARIABLES, *(flag.variable for flag in FLAGS if not flag.is_secret)}
    for name, value in sorted(os.environ.items()):
        if name in shown:
            yield f"{name}={redact(value.replace(str(Path.home()), '~'))}"
        elif name.startswith(ENV_PREFIX):  # a key, or a name misspelt: who knows of what
            yield f"{name}=***"


def _packages() -> list[str]:
    found = {dist.metadata["Name"]: dist.version for dist in distributions()}
    return [f"{name} {found[name]}" for name in sorted(found, key=str.lower)]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _first_line(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    return done.stdout.partition("\n")[0]
