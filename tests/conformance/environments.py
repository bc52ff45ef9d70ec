"""The clients' own environments: one virtual environment for each requirements file, and a folder for Node.

An environment is made when it is first asked for, and anew when its requirements have changed. What they need
in turn has the versions of `locked-NAME.txt`, which `run.py --lock` writes. `uv` installs, because pip takes
minutes to find versions for some of them.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
CONSTRAINTS = HERE.parents[1] / "constraints.txt"
INSTALL_TIMEOUT_S = 540
STAMP = ".installed"


class MissingError(Exception):
    """What a check needs is not on this machine."""


class Environments:
    """Environments below one folder.

    Args:
        folder: where they are; kept from run to run.
        is_locking: make them anew from the newest versions, and write those down.
    """

    def __init__(self, folder: Path, is_locking: bool = False) -> None:
        self._folder = folder
        self._is_locking = is_locking
        folder.mkdir(parents=True, exist_ok=True)

    def python(self, name: str) -> Path:
        """Return the interpreter of the environment with `requirements-NAME.txt`."""
        requirements, locked = HERE / f"requirements-{name}.txt", HERE / f"locked-{name}.txt"
        folder = self._folder / name
        python = folder / "bin/python"
        if self._is_locking:
            locked.unlink(missing_ok=True)
            _forget(folder)
        if not _is_current(folder, requirements, locked):
            uv = self._uv()
            shutil.rmtree(folder, ignore_errors=True)
            _install([uv, "venv", "--python", sys.executable, folder], self._log(name))
            limits = ["-c", locked] if locked.exists() else []
            command = [uv, "pip", "install", "--python", python, "-r", requirements, "-c", self._torch()]
            _install([*command, *limits], self._log(name), _uv_variables())
            if self._is_locking:
                locked.write_text(_frozen(uv, python), encoding="utf-8")
            _mark(folder, requirements, locked)
        return python

    def program(self, name: str, program: str) -> Path:
        """Return a command of an environment."""
        return self.python(name).with_name(program)

    def node(self) -> Path:
        """Return a folder whose node_modules holds what `package.json` names."""
        npm, package = shutil.which("npm"), HERE / "package.json"
        if npm is None or shutil.which("node") is None:
            raise MissingError("node and npm are not installed")
        folder = self._folder / "node"
        if not _is_current(folder, package):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            shutil.copy(package, folder)
            words = ("--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts")
            _install([npm, "install", "--prefix", folder, *words], self._log("node"))
            _mark(folder, package)
        return folder

    def _uv(self) -> Path:
        folder, requirements = self._folder / "uv", HERE / "requirements-uv.txt"
        if not _is_current(folder, requirements):
            shutil.rmtree(folder, ignore_errors=True)
            _install([sys.executable, "-m", "venv", folder], self._log("uv"))
            _install([folder / "bin/python", "-m", "pip", "install", "-r", requirements], self._log("uv"))
            _mark(folder, requirements)
        return folder / "bin/uv"

    def _torch(self) -> Path:
        """Return a constraint: the torch that mambad is tested with, wherever a client wants one."""
        lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
        path = self._folder / "torch.txt"
        path.write_text("\n".join(line for line in lines if line.startswith("torch==")) + "\n")
        return path

    def _log(self, name: str) -> Path:
        return self._folder / f"install-{name}.log"


def _uv_variables() -> dict[str, str]:
    """Let uv know the folder of wheels that pip knows, which may hold a torch for CPUs."""
    folder = os.environ.get("PIP_FIND_LINKS")
    return {"UV_FIND_LINKS": folder} if folder else {}


def _install(words: Sequence[str | Path], log: Path, variables: Mapping[str, str] | None = None) -> None:
    sys.stderr.write(f"conformance: {Path(words[0]).name} {' '.join(str(word) for word in words[1:])}\n")
    with log.open("a", encoding="utf-8") as file:
        try:
            done = subprocess.run(
                [str(word) for word in words], stdout=file, stderr=subprocess.STDOUT, check=False,
                stdin=subprocess.DEVNULL, timeout=INSTALL_TIMEOUT_S, env={**os.environ, **(variables or {})},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise MissingError(f"its installation took more than {INSTALL_TIMEOUT_S} s") from None
    if done.returncode:
        last = log.read_text(encoding="utf-8", errors="replace").strip()[-400:]
        raise MissingError(f"it can't be installed: {last}")


def _frozen(uv: Path, python: Path) -> str:
    """Return the versions in an environment, one a line; of torch, whichever build there is of it."""
    command = [str(uv), "pip", "freeze", "--quiet", "--python", str(python)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return "".join(f"{line.partition('+')[0]}\n" for line in text.splitlines())


def _digest(paths: Sequence[Path]) -> str:
    texts = [path.read_bytes() for path in paths if path.exists()]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def _is_current(folder: Path, *inputs: Path) -> bool:
    stamp = folder / STAMP
    return stamp.exists() and stamp.read_text() == _digest(inputs)


def _mark(folder: Path, *inputs: Path) -> None:
    (folder / STAMP).write_text(_digest(inputs))


def _forget(folder: Path) -> None:
    (folder / STAMP).unlink(missing_ok=True)
