"""The CPU ops at a dispatch level of choice, the amx level with emulated tile registers included."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mambad.kernels.cpu import library
from mambad.kernels.cpu.build import LEVELS, build_library
from mambad.kernels.cpu.library import DEFAULT_PATH, LEVEL_VARIABLE, Library, LibraryError
from mambad.kernels.cpu.ops import CpuOps, load_cpu_ops

EMULATED_AMX = "amx-emulated"
"""The amx level with tile registers in plain C (tiles.h)."""

ALL_LEVELS = (*LEVELS, EMULATED_AMX)

BFLOAT16_LEVELS = ("amx", "avx512bf16")
"""Levels whose linear layers with bfloat16 weights round their inputs to bfloat16."""

LoadLevel = Callable[[str, int], CpuOps]
"""(level, number of threads) -> the ops; skips the test where this machine or build can't have them."""


def copy_sources(folder: Path) -> None:
    """Copy the C sources into `folder`, where `build_library` finds them."""
    for source in Path(library.__file__).parent.glob("*.[ch]"):
        shutil.copy(source, folder)


def build_emulated(folder: Path) -> Path:
    """Build the amx level with emulated tiles in `folder` and return the path of the library."""
    copy_sources(folder)
    return build_library(folder, ("-DEMULATE_TILES",), ("amx",))


def load_ops(level: str, num_threads: int, emulated_library: Callable[[], Path]) -> CpuOps:
    """Return the ops at a level of ALL_LEVELS, or skip the test."""
    if isinstance(load_cpu_ops(1), str):
        pytest.skip("no C kernels")
    path = emulated_library() if level == EMULATED_AMX else DEFAULT_PATH
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(LEVEL_VARIABLE, "amx" if level == EMULATED_AMX else level)
        try:
            return CpuOps(Library(path), num_threads)
        except LibraryError as error:
            pytest.skip(str(error))
