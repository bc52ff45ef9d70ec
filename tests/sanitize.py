"""`make sanitize`: the kernel tests on a C library built with address and undefined-behaviour sanitizers.

    python tests/sanitize.py [pytest argument ...]

Builds a copy of the sources in a temporary folder; the library of the tree stays as it is. The tests run once
at each dispatch level that this machine has. The first finding ends the run, with the sanitizer's report.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mambad.kernels.cpu import library
from mambad.kernels.cpu.build import LEVELS, BuildError, build_library
from mambad.kernels.cpu.library import LEVEL_VARIABLE, LIBRARY_VARIABLE

ROOT = Path(__file__).parents[1]
SOURCES = Path(library.__file__).parent
FLAGS = (
    "-O1",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-DEMULATE_TILES",  # so that the level with tiles runs on machines without them, and is seen through
)
RUNTIMES = ("libasan.so", "libubsan.so", "libstdc++.so.6")
"""Loaded before Python, because Python itself is built without them; the last one for their look-ups."""

OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps memory until it ends
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "PYTHONMALLOC": "malloc",  # so that arrays made by ctypes have guarded ends too
}
LOAD = "from mambad.kernels.cpu.library import Library; print(Library().level)"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="sanitize-") as temporary:
        folder = Path(temporary)
        for path in SOURCES.glob("*.[ch]"):
            shutil.copy(path, folder)
        start = time.monotonic()
        try:
            built = build_library(folder, FLAGS)
        except BuildError as error:
            sys.stderr.write(f"sanitize: {error}\n")
            return 1
        sys.stderr.write(f"sanitize: built in {time.monotonic() - start:.0f} s\n")
        environment = os.environ | OPTIONS | {LIBRARY_VARIABLE: str(built), "LD_PRELOAD": preload()}
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS"):
            environment[name] += f":log_path={folder / 'report'}"  # pytest would swallow it
        status = run(environment, sys.argv[1:])
        for path in sorted(folder.glob("report.*")):
            sys.stderr.write(path.read_text())
        return status


def preload() -> str:
    """Return the sanitizers' runtimes of this compiler, as LD_PRELOAD wants them."""
    compiler = os.environ.get("CC", "cc").split()
    paths = []
    for name in RUNTIMES:
        command = [*compiler, f"-print-file-name={name}"]
        path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if "/" in path:
            paths.append(path)
    return " ".join(paths)


def run(environment: dict[str, str], arguments: list[str]) -> int:
    """Run the tests at every level; returns the first exit status that is not 0, and 1 without any level."""
    num_levels = 0
    for level in LEVELS:
        here = environment | {LEVEL_VARIABLE: level}
        if reason := why_not(level, here):
            sys.stderr.write(f"sanitize: level {level} is left out: {reason}\n")
            continue
        num_levels += 1
        start = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/kernels",
            *arguments,
        ]
        status = subprocess.run(command, env=here, cwd=ROOT).returncode
        sys.stderr.write(f"sanitize: level {level}: exit {status}, {time.monotonic() - start:.0f} s\n")
        if status != 0:
            return status
        if reason := why_not(level, here):  # then tests were left out
            sys.stderr.write(f"sanitize: the sources have changed in the meantime: {reason}\n")
            return 1
    return 0 if num_levels else 1


def why_not(level: str, environment: dict[str, str]) -> str | None:
    """Return why the library can't be loaded at a level, None when it can."""
    command = [sys.executable, "-c", LOAD]
    loaded = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    if loaded.stdout.strip() == level:
        return None
    return (loaded.stderr.strip().splitlines() or ["no reason"])[-1]


if __name__ == "__main__":
    sys.exit(main())
