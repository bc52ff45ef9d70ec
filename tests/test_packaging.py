"""The wheel: built from the source archive, installed into an environment of its own, run from there.

Heavy dependencies are borrowed from the environment that runs the tests, so nothing is downloaded.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def call(*command: str | Path, cwd: Path) -> str:
    """Run a command without this process's Python settings; returns its standard output."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def copy_sources(target: Path) -> None:
    """Copy what a clone would hold: no build output, no installation."""
    listed = call("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for name in listed:
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source archive, not from the folder."""
    folder = tmp_path_factory.mktemp("build")
    copy_sources(folder / "source")
    output = folder / "dist"
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", output, folder / "source", cwd=folder)
    assert len(list(output.glob("mambad-*.tar.gz"))) == 1
    (built,) = output.glob("mambad-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that has the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    interpreter = folder / "bin/python"
    pip = (sys.executable, "-m", "pip", "--python", interpreter)
    call(*pip, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    # After the environment's own packages on the path, and without the .pth files that stand there.
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return interpreter


@pytest.mark.slow
def test_the_wheel_holds_the_data_and_nothing_else_than_mambad(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"mambad"}
    assert "mambad/__init__.py" not in names
    for package in ("server", "engine", "kernels"):
        assert f"mambad/{package}/py.typed" in names
        assert f"mambad/{package}/__init__.py" not in names
    for pattern in (
        "mambad/configs/demo/config.json",
        "mambad/kernels/cpu/kernel.h",
        "mambad/__main__.py",
    ):
        assert pattern in names
    sources = {f"mambad/{path.relative_to(ROOT)}" for path in (ROOT / "kernels/cpu").glob("*.[ch]")}
    sources |= {f"mambad/{path.relative_to(ROOT)}" for path in (ROOT / "server/console").iterdir()}
    assert sources <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    # A compiled library belongs to one platform, and the wheel must say so.
    if shutil.which(os.environ.get("CC", "cc")):
        assert "mambad/kernels/cpu/libmambad_cpu.so" in names
        assert not wheel.name.endswith("-none-any.whl")


@pytest.mark.slow
def test_mambad_runs_from_the_wheel_in_a_clean_environment(python, tmp_path):
    script = python.with_name("mambad")
    first = call(script, "version", cwd=tmp_path).splitlines()
    assert first[0].startswith("mambad ")
    assert call(script, "--version", cwd=tmp_path) == call(python, "-m", "mambad", "--version", cwd=tmp_path)
    code = "import mambad.server.cli, mambad.engine.build; print(mambad.server.cli.__file__)"
    assert call(python, "-c", code, cwd=tmp_path).startswith(str(python.parents[1]))


@pytest.mark.slow
def test_the_demo_model_of_the_wheel_can_be_served(python, tmp_path):
    assert "granite" in call(python.with_name("mambad"), "check", cwd=tmp_path)


@pytest.mark.slow
def test_the_bare_names_stay_free_for_others(python, tmp_path):
    code = (
        "import importlib.util as u\n"
        "found = [name for name in ('server', 'engine', 'configs') if u.find_spec(name)]\n"
        "raise SystemExit(str(found) if found else 0)"
    )
    call(python, "-c", code, cwd=tmp_path)
