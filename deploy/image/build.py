"""Builds the image from the Dockerfile: `make image`.

With a Docker engine that is `docker build`. Without one, buildah builds the same Dockerfile as root, on a
base of Debian packages that debootstrap makes and that gets the name of the Dockerfile's base: such an image
shows that the Dockerfile works, not what the published base holds. It is kept in a store of its own under
`build/image`, apart from the machine's images. check.py starts what was built.
"""

import argparse
import configparser
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build/image"
TAG = "mambad:cpu"
BUILDAH = (
    "buildah", "--root", str(FOLDER / "store"), "--runroot", str(FOLDER / "run"),
    "--storage-driver", os.environ.get("STORAGE_DRIVER", "overlay"),
)  # fmt: skip
SUITE = "bookworm"
BASE_PACKAGES = "ca-certificates,python3,python3-venv"
PIP_SETTINGS = ("index-url", "extra-index-url", "find-links", "cert", "proxy", "timeout", "trusted-host")


def call(*words: str | Path, output: bool = False, **environment: str) -> str:
    """Run a command, its output shown or returned.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    stdout = subprocess.PIPE if output else None
    env = {**os.environ, **environment}
    done = subprocess.run([str(word) for word in words], stdout=stdout, env=env, check=True, text=True)
    return (done.stdout or "").strip()


def has_docker() -> bool:
    """Return whether a Docker engine answers."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


def default_base() -> str:
    """Return the base's name, from the Dockerfile."""
    match = re.search(r"^ARG BASE=(\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert match is not None
    return match[1]


def labels() -> dict[str, str]:
    """Return the build arguments that end up in labels."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    try:
        words = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
        revision = call("git", "-C", ROOT, *words, output=True)
    except (OSError, subprocess.CalledProcessError):
        revision = "unknown"
    return {"VERSION": project["version"], "REVISION": revision}


def pip_settings(listed: str) -> dict[str, str]:
    """Return where pip gets packages from, out of what `pip config list` prints; the environment wins."""
    found: dict[str, str] = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, text = line.partition("=")
        if (key := name.rpartition(".")[2]) in PIP_SETTINGS:
            found[key] = text.strip("'\"").replace("\\n", " ")
    return found


def local_folders(settings: Mapping[str, str]) -> list[str]:
    """Return the files and folders of this machine that these settings point at.

    Of a `file:` index it is the folder above, because its pages point beside it.
    """
    found = set()
    for word in " ".join(settings.values()).split():
        path = Path(word.removeprefix("file://"))
        if path.is_absolute() and path.exists():
            found.add(str(path.parent if word.startswith("file://") else path))
    return sorted(found)


def write_pip_settings(settings: Mapping[str, str]) -> Path:
    """Write them as a configuration of pip, readable by root alone: they may hold credentials."""
    path = FOLDER / "pip.conf"
    path.unlink(missing_ok=True)
    parser = configparser.RawConfigParser()
    parser["global"] = dict(settings)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
        parser.write(file)
    return path


def make_base(name: str) -> None:
    """Make the stand-in for the base, unless the store has it."""
    if call(*BUILDAH, "images", "--noheading", "--quiet", "--filter", f"reference={name}", output=True):
        return
    folder = FOLDER / "base"
    shutil.rmtree(folder, ignore_errors=True)
    call("debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", SUITE, folder)
    call("chroot", folder, "apt-get", "clean")
    container = call(*BUILDAH, "from", "scratch", output=True)
    call(*BUILDAH, "add", "--quiet", container, folder, "/")
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    call(*BUILDAH, "config", "--env", f"PATH={path}", "--cmd", "python3", container)
    call(*BUILDAH, "commit", "--quiet", "--rm", container, name)
    shutil.rmtree(folder)


def build_with_buildah(arguments: Mapping[str, str], target: str, tag: str) -> None:
    """Build on the stand-in, with pip's sources of this machine, from which nothing gets into the image."""
    missing = [name for name in ("buildah", "runc", "debootstrap") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        reason = f"{' and '.join(missing)} not found" if missing else "not root"
        sys.exit(
            f"mambad: error: no Docker engine answers, and {reason}: start one, or on Debian, as root,"
            " apt install buildah runc debootstrap"
        )
    FOLDER.mkdir(parents=True, exist_ok=True)
    make_base(arguments["BASE"])
    settings = pip_settings(call(sys.executable, "-m", "pip", "config", "list", output=True))
    if "find-links" in settings or "extra-index-url" in settings:
        arguments = {"TORCH_INDEX": "", **arguments}
    volumes = [word for path in local_folders(settings) for word in ("--volume", f"{path}:{path}:ro")]
    flags = ("--isolation", "chroot", "--network", "host", "--format", "docker", "--pull-never", "--layers")
    path = write_pip_settings(settings)
    try:
        call(
            *BUILDAH, "build", *flags, *volumes, "--secret", f"id=pip_conf,src={path}",
            *build_arguments(arguments), "--target", target, "--tag", tag, ROOT,
            TMPDIR=str(FOLDER),
        )  # fmt: skip
    finally:
        path.unlink()


def build_arguments(arguments: Mapping[str, str]) -> list[str]:
    """Return them as flags."""
    return [word for name, text in arguments.items() for word in ("--build-arg", f"{name}={text}")]


def main() -> int:
    """Build; return the exit code."""
    parser = argparse.ArgumentParser(description="Build the image, with docker or else buildah.")
    parser.add_argument("--target", default="cpu", help="stage of the Dockerfile")
    parser.add_argument("--tag", default=TAG)
    parser.add_argument("--base", help="base image, such as name:tag@sha256:…; default: the Dockerfile's")
    parser.add_argument("--torch-index", help="index with CPU builds of torch; default: the Dockerfile's")
    parser.add_argument("--pip-conf", type=Path, help="pip's configuration during a build with docker")
    options = parser.parse_args()
    arguments = labels()
    if options.torch_index is not None:
        arguments["TORCH_INDEX"] = options.torch_index
    if has_docker():
        if options.base:
            arguments["BASE"] = options.base
        secret = ("--secret", f"id=pip_conf,src={options.pip_conf}") if options.pip_conf else ()
        words = build_arguments(arguments)
        call("docker", "build", *secret, *words, "--target", options.target, "--tag", options.tag, ROOT)
    else:
        arguments["BASE"] = options.base or default_base()
        build_with_buildah(arguments, options.target, options.tag)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"mambad: error: {error.cmd[0]} failed with exit code {error.returncode}")
