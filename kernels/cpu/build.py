"""Builds the C kernels: `python -m mambad.kernels.cpu.build`, also called by setup.py.

Owns the compiler flags and the list of dispatch levels. The shared object is written beside the sources, from
where `library.py` loads it. It imports nothing of mambad, so that setup.py can run this file by its path.
A missing or failing compiler is not fatal: the daemon then runs on the reference kernels and says so.
"""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LIBRARY_NAME = "libmambad_cpu.so"

_COMMON_SOURCES = ("pool.c", "program.c", "memory.c", "dispatch.c")

_FLAGS = (
    "-std=gnu11",
    "-O3",
    "-g1",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    # Results must follow the source: kernel.h says why. The last two flags only free the compiler from
    # errno and exception flags, which nobody reads.
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
)

_AVX512 = ("-march=x86-64-v4", "-mprefer-vector-width=512")
_AVX512_BF16 = (*_AVX512, "-mavx512bf16", "-mavx512vnni")
_LEVEL_FLAGS = {
    "amx": (*_AVX512_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    "avx512bf16": _AVX512_BF16,
    "avx512": _AVX512,
    "avx2": ("-march=x86-64-v3",),
    "generic": (),
}

LEVELS = tuple(_LEVEL_FLAGS)
"""All dispatch levels, the best first. A compiler that does not know one's flags leaves it out."""


class BuildError(Exception):
    """The shared object could not be built; the message is one line."""


def sources_digest(folder: Path) -> str:
    """Return a digest of what the shared object is made of: the C files of `folder` and this script.

    It is compiled in and compared at load, because a library that does not match its declarations crashes.
    """
    digest = hashlib.sha256()
    paths = [*folder.glob("*.[ch]"), Path(__file__)]
    for path in sorted(paths, key=lambda path: path.name):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def build_library(folder: Path, extra_flags: tuple[str, ...] = (), levels: tuple[str, ...] = LEVELS) -> Path:
    """Compile the sources of `folder` for dispatch levels and link them into one shared object.

    The compiler is $CC, else cc. The file appears at once and complete, or not at all.

    Args:
        folder: where the sources are and the shared object goes.
        extra_flags: flags for compiler and linker, such as -fsanitize=address.
        levels: the levels wanted; those that this compiler or machine can't have are left out.

    Returns:
        Path of the shared object.

    Raises:
        BuildError: there is no compiler, or it failed.
    """
    folder = folder.resolve()
    compiler = (*shlex.split(os.environ.get("CC", "cc")), *_FLAGS, *extra_flags)
    ops = sorted(path.name for path in folder.glob("*.c") if path.name not in _COMMON_SOURCES)
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix="build-") as temporary,
        ThreadPoolExecutor(os.cpu_count()) as executor,
    ):
        work = Path(temporary)
        levels = tuple(level for level in levels if _has_level(compiler, level, work))
        digest = f'-DSOURCES_DIGEST="{sources_digest(folder)}"'
        common_flags = (*(f"-DHAS_{level.upper()}" for level in levels), digest)
        jobs = [executor.submit(_compile, compiler, folder, _COMMON_SOURCES, work / "common", common_flags)]
        for level in levels:
            flags = (f"-DLEVEL={level}", *_LEVEL_FLAGS[level])
            jobs.append(executor.submit(_compile, compiler, folder, ops, work / level, flags))
        for job in jobs:
            job.result()
        objects = sorted(str(path) for path in work.glob("*/*.o"))
        library = work / LIBRARY_NAME
        _run((*compiler, "-shared", "-o", str(library), *objects, "-lm"), work)
        return library.replace(folder / LIBRARY_NAME)


def _has_level(compiler: tuple[str, ...], level: str, work: Path) -> bool:
    if level == "generic":
        return True
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        _run((*compiler, *_LEVEL_FLAGS[level], "-fsyntax-only", "-x", "c", os.devnull), work)
    except BuildError:
        return False
    return True


def _compile(
    compiler: tuple[str, ...],
    folder: Path,
    sources: list[str] | tuple[str, ...],
    work: Path,
    flags: tuple[str, ...],
) -> None:
    work.mkdir()
    _run((*compiler, *flags, "-c", *(str(folder / source) for source in sources)), work)


def _run(command: tuple[str, ...], work: Path) -> None:
    try:
        result = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"can't run the C compiler {command[0]!r}: {error.strerror}") from error
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or ["no message"]
        first_error = next((line for line in lines if "error" in line), lines[0])
        raise BuildError(f"the C compiler {command[0]!r} failed: {first_error.strip()}")
    if result.stderr:
        sys.stderr.write(result.stderr)


def main() -> int:
    """Build beside this file and say in one line what came of it; return the exit status."""
    try:
        library = build_library(Path(__file__).parent)
    except BuildError as error:
        sys.stderr.write(f"C kernels not built, the reference kernels will be used: {error}\n")
        return 1
    sys.stderr.write(f"C kernels built: {library}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
