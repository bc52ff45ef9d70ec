"""docs/conformance.md is of the clients that are pinned now, and all of them passed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/conformance.md").read_text(encoding="utf-8")
TOOLS = ("uv", "mcp")
"""Packages that are no clients."""
PINS = [
    re.fullmatch(r"([a-z0-9-]+)(?:\[[a-z]+\])?==(\S+)", line).groups()
    for path in sorted((ROOT / "tests/conformance").glob("requirements-*.txt"))
    for line in path.read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("pin", [pin for pin in PINS if pin[0] not in TOOLS], ids=" ".join)
def test_the_page_tells_of_each_pinned_client(pin):
    assert " ".join(pin) in PAGE


def test_every_check_of_the_page_has_passed():
    rows = [line.split("|") for line in PAGE.splitlines() if re.match(r"\| [a-z]", line)]
    header, *results = rows
    assert header[5].strip() == "result"
    assert len(results) == 14
    assert [row[1] for row in results if not row[5].startswith(" passed")] == []
    assert all(int(row[4].replace(",", "")) > 0 for row in results)
