"""The engine process's allocator settings."""

import ctypes
import os
import subprocess
import sys

import pytest

from mambad.engine.heap import VARIABLE, heap_environment

PROGRAM = """
import ctypes, resource, torch
torch.set_num_threads(1)
torch.empty(1 << 21).fill_(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.empty(1 << 21).fill_(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(environment: dict[str, str]) -> int:
    """Return the page faults of 20 tensors of 8 MiB, one after the other."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_what_the_user_has_set_stands():
    assert heap_environment({VARIABLE: "mine", "A": "b"}) == {VARIABLE: "mine", "A": "b"}


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="not glibc")
def test_freed_activations_are_used_again_without_new_pages():
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    assert faults(heap_environment(environment)) < 100 < faults(environment)
