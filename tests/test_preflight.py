"""What `make` says on a machine that lacks something, before it downloads anything."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "deploy/preflight.sh"


def preflight(*words: str | Path, **environment: str) -> tuple[int, list[str]]:
    """Return exit code and the lines of `preflight.sh PYTHON VENV [PORT]`."""
    command = [SCRIPT, *words]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, cwd=ROOT, check=False
    )
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_a_machine_with_everything_passes_in_silence(tmp_path):
    program(tmp_path, "cc", "true")
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert preflight(sys.executable, tmp_path / "none", PATH=path, CC="cc") == (0, [])


def test_no_python_is_one_line_with_a_remedy(tmp_path):
    code, lines = preflight("", tmp_path / "none")
    assert code == 2
    assert lines == [
        "mambad: error: no Python 3.11 or newer was found; install one, or name it: "
        "make PYTHON=/path/to/python3.11 …"
    ]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("exit 1", "is not Python 3.11 or newer; install one"),
        (
            'case "$2" in *ensurepip*) exit 1;; esac',
            "has no venv module; install it (on Debian",
        ),
    ],
)
def test_an_unfit_python_is_one_line_with_a_remedy(tmp_path, fault, message):
    python = program(tmp_path, "python", fault)
    code, lines = preflight(python, tmp_path / "none")
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith(f"mambad: error: {python} ")
    assert message in lines[0]


def test_too_little_disk_names_both_sizes(tmp_path):
    program(tmp_path, "df", "echo Filesystem; echo /dev/sda 9000000 0 1048576 0% /")
    code, lines = preflight(sys.executable, tmp_path / "none", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert code == 2
    assert lines == [
        "mambad: error: 1024 MiB are free here, the packages need 3000 MiB; free some, or clone elsewhere"
    ]


def test_no_compiler_only_warns(tmp_path):
    code, lines = preflight(sys.executable, tmp_path / "none", CC="no-such-compiler")
    assert (code, len(lines)) == (0, 1)
    assert lines[0].startswith(
        "mambad: warning: no C compiler (no-such-compiler) was found: the slower kernels"
    )


def test_a_used_port_is_one_line_with_a_remedy(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, lines = preflight(sys.executable, tmp_path / "none", port, CC="true")
    assert code == 2
    message = f"port {port} is in use; stop what listens there, or choose another: make serve PORT=8001"
    assert lines == [f"mambad: error: {message}"]
    assert preflight(sys.executable, tmp_path / "none", port, CC="true") == (0, [])


def test_an_existing_environment_is_not_examined_again(tmp_path):
    (tmp_path / "venv/bin").mkdir(parents=True)
    program(tmp_path / "venv/bin", "pip", "true")
    assert preflight(sys.executable, tmp_path / "venv", CC="no-such-compiler") == (0, [])


def test_plain_make_lists_the_targets():
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "--no-print-directory"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=True,
    )
    listed = {line.split()[1] for line in done.stdout.splitlines()}
    assert {"serve", "test", "venv", "check", "test-fast", "fmt", "lint", "type"} <= listed
