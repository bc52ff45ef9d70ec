"""Tile registers: a machine whose tiles multiply wrongly does without them, and the build without compilers
that know them."""

from pathlib import Path

import pytest
from kernels_levels import copy_sources

from mambad.kernels.cpu import library
from mambad.kernels.cpu.build import build_library, sources_digest
from mambad.kernels.cpu.library import LEVEL_VARIABLE, Library, LibraryError
from mambad.kernels.cpu.ops import CpuOps, load_cpu_ops


@pytest.fixture(autouse=True)
def needs_compiler_and_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "avx512bf16")
    if isinstance(reason := load_cpu_ops(1), str):
        pytest.skip(reason)
    monkeypatch.delenv(LEVEL_VARIABLE)


def test_level_whose_tiles_multiply_wrongly_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_sources(tmp_path)
    tiles = tmp_path / "tiles.h"
    right, wrong = "without_denormals(even + odd)", "without_denormals(even)"
    assert right in tiles.read_text()
    tiles.write_text(tiles.read_text().replace(right, wrong))
    built = build_library(tmp_path, ("-DEMULATE_TILES", "-O0"), ("amx", "generic"))
    monkeypatch.setattr(library, "sources_digest", lambda _folder: sources_digest(tmp_path))
    ops = CpuOps(Library(built), 1)
    assert ops.level == "generic"
    assert ops.reason == "C kernels, 1 thread; amx multiplies wrongly here and is not used"
    monkeypatch.setenv(LEVEL_VARIABLE, "amx")
    with pytest.raises(LibraryError, match=r"'amx' is not a level .* multiplies wrongly"):
        Library(built)


def test_level_whose_flags_the_compiler_does_not_know_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "old-cc"
    compiler.write_text('#!/bin/sh\ncase "$*" in *mamx-tile*) exit 1;; esac\nexec cc "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    copy_sources(tmp_path)
    built = build_library(tmp_path, ("-DEMULATE_TILES", "-O0"), ("amx", "generic"))
    assert Library(built).level == "generic"
