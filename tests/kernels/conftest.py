"""The implementations of `Ops` that the kernel tests run against, one after the other."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from kernels_levels import ALL_LEVELS, LoadLevel, build_emulated, load_ops

from mambad.kernels.cpu.ops import load_cpu_ops
from mambad.kernels.ops import Ops
from mambad.kernels.reference.ops import ReferenceOps


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Run torch as `select_ops` leaves it for the reference, and put the thread count back."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session", params=["reference", "cpu"])
def ops(request: pytest.FixtureRequest) -> Ops:
    """Every implementation that runs on this machine."""
    if request.param == "reference":
        return ReferenceOps("tests")
    loaded = load_cpu_ops(2)
    if isinstance(loaded, str):
        pytest.skip(loaded)
    return loaded


@pytest.fixture(scope="session")
def load_level(tmp_path_factory: pytest.TempPathFactory) -> LoadLevel:
    """Load the CPU ops at a dispatch level; the emulation is built once, when it is first asked for."""

    @cache
    def emulated_library() -> Path:
        return build_emulated(tmp_path_factory.mktemp("emulated"))

    return lambda level, num_threads: load_ops(level, num_threads, emulated_library)


@pytest.fixture(params=ALL_LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    """Every dispatch level, whether this machine has it or not."""
    return str(request.param)


@pytest.fixture(scope="session", params=["reference", *ALL_LEVELS])
def ops_at_level(request: pytest.FixtureRequest, load_level: LoadLevel) -> Ops:
    """Every implementation and dispatch level that runs on this machine."""
    return ReferenceOps("tests") if request.param == "reference" else load_level(request.param, 2)
