"""Build hook: compiles the C kernels, so that wheels and editable installs carry them.

Everything else about the project is in pyproject.toml. Compiling is optional: where it fails, one line says
so and the package is built without the shared object.
"""

import runpy
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

BUILD_SCRIPT = Path(__file__).parent / "kernels" / "cpu" / "build.py"


class BuildWithKernels(build_py):
    """build_py that compiles first: the shared object is package data."""

    def run(self) -> None:
        """Compile, then collect the package's files."""
        # By path: mambad is not importable while it is being built.
        runpy.run_path(str(BUILD_SCRIPT))["main"]()
        super().run()


class PlatformDistribution(Distribution):
    """A distribution with machine code, which setuptools does not see because it is package data."""

    def has_ext_modules(self) -> bool:
        """Return True, which makes wheels platform-specific."""
        return True


class PlatformWheel(bdist_wheel):
    """bdist_wheel whose tag names the platform but no Python version: ctypes needs none."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the wheel's tag."""
        _, _, platform = super().get_tag()
        return "py3", "none", platform


setup(
    distclass=PlatformDistribution,
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel},
)
