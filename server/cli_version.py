"""`mambad version`: what is installed and what it would compute with, for a bug report."""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version

from mambad.engine.cgroup import allowed_threads
from mambad.server.cli_parser import Parser

PACKAGES = ("torch", "tokenizers", "fastapi", "uvicorn")


def run(words: Sequence[str]) -> int:
    """Print versions, device and kernels; returns the exit code."""
    parser = Parser(prog="mambad version", description="Print versions, device and kernels.")
    parser.parse_strictly(words)
    print(f"mambad {version('mambad')}")
    print(f"python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for package in PACKAGES:
        print(f"{package} {version(package)}")
    threads = allowed_threads(os.environ)
    print(f"device cpu, {threads.amount} threads ({threads.reason})")
    print(f"kernels {_kernels(threads.amount)}")
    return 0


def _kernels(num_threads: int) -> str:
    # Takes a second: torch.
    import torch

    from mambad.kernels.selection import select_ops

    try:
        ops = select_ops(torch.device("cpu"), num_threads)
    except ValueError as error:
        return f"none: {error}"
    return f"{ops.name} ({ops.reason})"
