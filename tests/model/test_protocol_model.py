"""The model of the slot protocol holds at a small size, and does not without the quarantine.

`make model-check` has the full sizes. Needs spin and a C compiler: without them the tests are skipped, but
not in CI (environment variable CI), where a missing tool is an error.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).with_name("check.py")
TOOLS = ("spin", os.environ.get("CC", "cc"))


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    missing = " and ".join(tool for tool in TOOLS if shutil.which(tool) is None)
    if missing and os.environ.get("CI"):
        pytest.fail(f"CI lacks {missing}: is it in .ci/packages.txt?")
    if missing:
        pytest.skip(f"the protocol is not checked: {missing} is not installed")


def check(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHECK), "--folder", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_protocol_holds_at_a_small_size(tmp_path: Path) -> None:
    done = check(tmp_path, "--short")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" holds") == 2


def test_without_the_quarantine_a_step_writes_a_slot_of_nobody_or_of_others(tmp_path: Path) -> None:
    done = check(tmp_path, "--without-quarantine")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "VIOLATED: assertion violated (rank[me].slot_holder[id_]==who_)" in done.stdout
    assert "executes request" in done.stdout.splitlines()[-3]


def test_a_search_that_ran_out_of_memory_is_no_proof(tmp_path: Path) -> None:
    done = check(tmp_path, "short", "--max-memory-mib", "63")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "NO PROOF: pan: reached -DMEMLIM bound" in done.stdout
