"""Writes the image's locks anew: `make lock`, after a change of the dependencies or of constraints.txt.

    python deploy/image/lock.py [argument of uv ...]

`requirements-cpu.txt` is everything that the target `cpu` installs, EXTRAS included; `requirements-build.txt`
is what builds the wheel; both have the hashes of every file of each release. torch is pinned to its CPU
build, whose version no other index has; by default its hashes come from PyTorch's own index. Arguments
replace that default: `--find-links FOLDER` for a wheel that lies there.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/image"
CONSTRAINTS = ROOT / "constraints.txt"
PYTHON_VERSION = "3.11"
EXTRAS = ("otel",)
HEADER = "# Made by `make lock`; do not edit.\n"


def cpu_constraints() -> str:
    """Return constraints.txt with torch pinned to its CPU build."""
    text, count = re.subn(
        r"^(torch==[\d.]+)$", r"\1+cpu", CONSTRAINTS.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert count == 1, "constraints.txt pins torch once"
    return text


def lock(target: Path, requirements: str, constraints: Path, arguments: list[str]) -> None:
    """Resolve requirements for the image's Python and write them to `target`, with hashes."""
    command = [
        "uv", "pip", "compile", "-", "--constraint", str(constraints), "--generate-hashes", "--quiet",
        "--no-header", "--no-annotate", "--python-version", PYTHON_VERSION, "--python-platform", "linux",
        *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, input=requirements, stdout=subprocess.PIPE, text=True, check=True)
    target.write_text(HEADER + done.stdout, encoding="utf-8")


def main() -> int:
    """Write both locks; return the exit code."""
    if shutil.which("uv") is None:
        sys.exit("mambad: error: uv was not found; install it: pip install uv")
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = pyproject["project"]
    wanted = list(project["dependencies"])
    for extra in EXTRAS:
        wanted += project["optional-dependencies"][extra]
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as constraints:
        constraints.write(cpu_constraints())
        constraints.flush()
        arguments = sys.argv[1:] or ["--torch-backend", "cpu"]
        lock(FOLDER / "requirements-cpu.txt", "\n".join(wanted), Path(constraints.name), arguments)
        build = "\n".join(pyproject["build-system"]["requires"])
        lock(FOLDER / "requirements-build.txt", build, Path(constraints.name), [])
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"mambad: error: uv failed with exit code {error.returncode}")
