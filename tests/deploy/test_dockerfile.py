"""The Dockerfile by its text: hadolint, locks, what reaches the build, what the last stage says.

`make image` builds it and starts the result.
"""

import re
import runpy
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"
CPU_LOCK = ROOT / "deploy/image/requirements-cpu.txt"
BUILD_LOCK = ROOT / "deploy/image/requirements-build.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
HADOLINT = Path(sys.executable).with_name("hadolint")


def instructions() -> list[tuple[str, str]]:
    """Every instruction: its word and the rest, on one line."""
    lines = [line for line in DOCKERFILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split()[0], line.partition(" ")[2]) for line in text.splitlines() if line]


def stages() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """What each stage is made from, and its instructions."""
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    for word, rest in instructions():
        if word == "FROM":
            base, name = rest.split(" AS ")
            found[name] = (base, [])
        elif found:
            list(found.values())[-1][1].append((word, rest))
    return found


def shipped(stage: str) -> list[tuple[str, str]]:
    """The instructions that a stage inherits and has, in order."""
    if stage not in stages():
        return []
    base, own = stages()[stage]
    return shipped(base) + own


def pins(path: Path) -> dict[str, str]:
    """Name and version of each line with a pin."""
    matches = re.finditer(r"^([\w.-]+)==([^\s\\;]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {match[1].lower().replace("_", "-"): match[2] for match in matches}


def reaches_the_build(path: str) -> bool:
    """Whether .dockerignore lets a file into the build: the last line that matches it or a folder above."""
    parents = [path, *(str(folder) for folder in Path(path).parents)][:-1]
    is_in = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            # Here ** stands for any number of folders, of which fnmatch's * is a superset.
            names = [pattern, pattern.removeprefix("**/")] if pattern.startswith("**/") else [pattern]
            if any(fnmatchcase(parent, name) for parent in parents for name in names):
                is_in = line.startswith("!")
    return is_in


def lint(text: str) -> subprocess.CompletedProcess[str]:
    command = [HADOLINT, "--no-color", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def test_hadolint_finds_nothing() -> None:
    done = lint(DOCKERFILE.read_text(encoding="utf-8"))
    assert (done.returncode, done.stdout) == (0, "")


def test_hadolint_would_find_something() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    assert "DL3008" in lint(text.replace("# hadolint ignore=DL3008\n", "")).stdout
    assert "DL4000" in lint(f"{text}MAINTAINER nobody\n").stdout


def test_the_default_target_is_cpu_and_all_stages_stand_on_one_base() -> None:
    assert list(stages())[-1] == "cpu"
    bases = {base for base, _ in stages().values()} - set(stages())
    assert bases == {"${BASE}"}
    tag = next(rest for word, rest in instructions() if word == "ARG" and rest.startswith("BASE="))
    assert re.fullmatch(r"BASE=[\w/.-]+:[\w.-]+(@sha256:[0-9a-f]{64})?", tag)


def test_what_is_shipped_is_made_without_a_command_and_only_the_wheel_has_a_compiler() -> None:
    assert [rest for word, rest in shipped("cpu") if word in ("RUN", "ADD", "VOLUME")] == []
    with_apt = [name for name, (_, own) in stages().items() if any("apt-get" in rest for _, rest in own)]
    assert with_apt == ["wheel"]


def test_the_image_starts_mambad_as_a_numbered_user_and_can_be_stopped_and_asked() -> None:
    said = dict(shipped("cpu"))
    assert said["ENTRYPOINT"] == '["mambad"]'
    assert said["CMD"] == '["serve"]'
    assert said["STOPSIGNAL"] == "SIGTERM"
    assert said["EXPOSE"] == "8000"
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", said["USER"])
    assert "curl" not in said["HEALTHCHECK"]
    assert "/app/healthcheck.py" in said["HEALTHCHECK"]
    assert "org.opencontainers.image.version" in said["LABEL"]
    environment = " ".join(rest for word, rest in shipped("cpu") if word == "ENV")
    for setting in ("MAMBAD_HOST=0.0.0.0", "PYTHONSAFEPATH=1", "PYTHONDONTWRITEBYTECODE=1", "HOME=/tmp"):
        assert setting in environment.split()


@pytest.mark.parametrize("path", [CPU_LOCK, BUILD_LOCK])
def test_every_line_of_a_lock_is_pinned_and_has_hashes(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [number for number, line in enumerate(lines) if re.match(r"\w", line)]
    assert len(starts) == len(pins(path)) > 0
    for number in starts:
        rest = list(takewhile(lambda line: line.startswith("    --hash=sha256:"), lines[number + 1 :]))
        assert rest, lines[number]


def test_the_cpu_lock_has_no_package_of_cuda() -> None:
    locked = pins(CPU_LOCK)
    assert locked["torch"].endswith("+cpu")
    assert [name for name in locked if re.match(r"nvidia|cuda|.*triton", name)] == []


def test_the_locks_hold_what_pyproject_asks_for_at_the_versions_that_are_tested() -> None:
    tested = pins(ROOT / "constraints.txt")
    extras = runpy.run_path(str(ROOT / "deploy/image/lock.py"))["EXTRAS"]
    optional = [text for extra in extras for text in PROJECT["project"]["optional-dependencies"][extra]]
    for path, wanted in (
        (CPU_LOCK, PROJECT["project"]["dependencies"] + optional),
        (BUILD_LOCK, PROJECT["build-system"]["requires"]),
    ):
        locked = pins(path)
        for requirement in wanted:
            name = re.split(r"[^\w-]", requirement)[0].lower().replace("_", "-")
            assert locked.get(name, "").removesuffix("+cpu") == tested[name], f"run `make lock`: {name}"


def test_what_the_build_copies_reaches_it() -> None:
    sources = [
        source
        for _, own in stages().values()
        for word, rest in own
        if word == "COPY" and "--from" not in rest
        for source in [part for part in rest.split() if not part.startswith("--")][:-1]
    ]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *sources],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert {name.split("/")[0] for name in listed} >= {"server", "engine", "kernels", "configs", "deploy"}
    assert [name for name in listed if not reaches_the_build(name)] == []
    assert [source for source in sources if not (ROOT / source).exists()] == []
    folders = {path.split("/")[0] for path in PROJECT["tool"]["setuptools"]["package-dir"].values()}
    files = {"setup.py", "MANIFEST.in", PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}
    assert folders | files | {"pyproject.toml"} <= set(sources)


@pytest.mark.parametrize(
    "path",
    [
        ".git/config", ".venv/bin/python", "tests/test_packaging.py", ".env", "build/image/pip.conf",
        "deploy/image/build.py", "kernels/cpu/libmambad_cpu.so", "server/__pycache__/app.cpython-311.pyc",
        "engine/models/__pycache__/spec.cpython-311.pyc", "mambad.egg-info/PKG-INFO", "Makefile",
    ],
)  # fmt: skip
def test_what_no_image_needs_stays_out_of_the_build(path: str) -> None:
    assert not reaches_the_build(path)
