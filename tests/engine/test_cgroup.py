"""Limits of threads and memory, read from made-up `/proc` and `/sys` trees."""

import os
from pathlib import Path

import pytest

from mambad.engine.cgroup import MAX_DEFAULT_THREADS, allowed_threads, available_memory

GIB = 2**30


def tree(root: Path, files: dict[str, str]) -> Path:
    """Write files under `root`; a machine with 8 GiB available unless they say otherwise."""
    for name, text in ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 8388608 kB\n"} | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.fixture(autouse=True)
def _eight_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def test_without_limits_the_affinity_mask_decides(tmp_path):
    allowance = allowed_threads({}, tree(tmp_path, {}))
    assert (allowance.amount, allowance.reason) == (8, "8 processors allowed")


def test_a_large_machine_gets_the_default_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(96)))
    assert allowed_threads({}, tree(tmp_path, {})).amount == MAX_DEFAULT_THREADS


@pytest.mark.parametrize(("text", "amount"), [("350000 100000", 3), ("50000 100000", 1), ("max 100000", 8)])
def test_a_quota_is_rounded_down_but_not_to_nothing(tmp_path, text, amount):
    root = tree(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": text})
    assert allowed_threads({}, root).amount == amount


def test_the_smallest_quota_on_the_way_up_decides(tmp_path):
    files = {
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/outer/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/outer/inner/cpu.max": "400000 100000\n",
    }
    allowance = allowed_threads({}, tree(tmp_path, files))
    assert (allowance.amount, allowance.reason) == (2, "cgroup quota of 2 processors")


def test_version_1_quotas_count(tmp_path):
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n0::/\n",
        # In a container the path is the host's; what is mounted is the container's own group.
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
    }
    assert allowed_threads({}, tree(tmp_path, files)).amount == 3
    (tmp_path / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us").write_text("-1", encoding="utf-8")
    assert allowed_threads({}, tmp_path).amount == 8


@pytest.mark.parametrize(
    ("value", "amount"), [("3", 3), ("24", 24), ("4,2", 4), ("0", 8), ("many", 8), ("", 8)]
)
def test_omp_num_threads_is_honoured_when_it_is_a_number(tmp_path, value, amount):
    assert allowed_threads({"OMP_NUM_THREADS": value}, tree(tmp_path, {})).amount == amount


def test_without_a_cgroup_limit_the_machines_memory_decides(tmp_path):
    root = tree(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"})
    assert available_memory(root).amount == 8 * GIB


def test_what_a_cgroup_leaves_counts_reclaimable_cache_as_free(tmp_path):
    files = {
        "proc/self/cgroup": "0::/pod\n",
        "sys/fs/cgroup/pod/memory.max": str(4 * GIB),
        "sys/fs/cgroup/pod/memory.current": str(3 * GIB),
        "sys/fs/cgroup/pod/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
    }
    allowance = available_memory(tree(tmp_path, files))
    assert (allowance.amount, allowance.reason) == (3 * GIB, "left of the cgroup limit of 4.0 GiB")


def test_version_1_memory_limits_count(tmp_path):
    files = {
        "proc/self/cgroup": "3:memory:/a\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "0",
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(2 * GIB),
        "sys/fs/cgroup/memory/a/memory.usage_in_bytes": str(GIB),
        "sys/fs/cgroup/memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 5\n",
    }
    assert available_memory(tree(tmp_path, files)).amount == GIB + 5


def test_an_exceeded_limit_leaves_nothing(tmp_path):
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": str(GIB),
        "sys/fs/cgroup/memory.current": str(2 * GIB),
    }
    assert available_memory(tree(tmp_path, files)).amount == 0
