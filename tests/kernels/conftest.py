"""The implementations of `Ops` that the kernel tests run against, one after the other."""

from collections.abc import Iterator

import pytest
import torch

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
