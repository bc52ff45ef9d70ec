"""What `make image` calls: docker where an engine answers, else buildah with pip's sources of the machine."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy/image/build.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def build(folder: Path, docker: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a `docker` that runs this shell text, and none of the other programs."""
    program = folder / "docker"
    program.write_text(f"#!/bin/sh\n{docker}\n", encoding="utf-8")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": str(folder)}
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_docker_engine_builds_the_dockerfile(tmp_path):
    calls = f'[ "$1" = build ] && echo "$@" >> {tmp_path}/calls; exit 0'
    words = ("--base", "python:3.11@sha256:1", "--torch-index", "", "--pip-conf", "pip.conf", "--tag", "t")
    done = build(tmp_path, calls, *words)
    assert done.returncode == 0, done.stderr
    (line,) = (tmp_path / "calls").read_text().splitlines()
    assert line.endswith(f"--target cpu --tag t {ROOT}")
    assert "--secret id=pip_conf,src=pip.conf" in line
    for argument in ("BASE=python:3.11@sha256:1 ", "TORCH_INDEX= ", "VERSION=", "REVISION="):
        assert f"--build-arg {argument}" in line


def test_a_failed_docker_build_is_a_failure(tmp_path):
    done = build(tmp_path, '[ "$1" = info ]')
    assert done.returncode == 1
    assert done.stderr == "mambad: error: docker failed with exit code 1\n"


def test_no_engine_and_no_buildah_is_one_line_with_a_remedy(tmp_path):
    done = build(tmp_path, "exit 1")
    assert done.returncode == 1
    assert done.stderr.startswith("mambad: error: no Docker engine answers, and buildah and runc")
    assert len(done.stderr.splitlines()) == 1


def test_pip_gets_packages_in_the_build_from_where_it_gets_them_outside(script, tmp_path):
    index, wheels, bundle = tmp_path / "index/simple", tmp_path / "wheels", tmp_path / "ca.pem"
    for folder in (index, wheels):
        folder.mkdir(parents=True)
    bundle.touch()
    listed = (
        f":env:.cert='{bundle}'\n:env:.disable-pip-version-check='1'\nglobal.cert='/nowhere'\n"
        f"global.extra-index-url='file://{index}\\nhttps://example.org/simple'\nglobal.find-links='{wheels}'\n"
    )
    settings = script["pip_settings"](listed)
    assert settings == {
        "cert": str(bundle),
        "extra-index-url": f"file://{index} https://example.org/simple",
        "find-links": str(wheels),
    }
    assert script["local_folders"](settings) == sorted([str(bundle), str(index.parent), str(wheels)])


def test_the_base_is_the_dockerfiles(script):
    assert f"ARG BASE={script['default_base']()}\n" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
