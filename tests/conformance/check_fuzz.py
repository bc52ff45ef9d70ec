"""The fuzz of this folder: thousands of type-confused requests to a server of its own."""

import re
import sys
from importlib.metadata import version

from outcome import HERE, Bench, Outcome, tail

TIMEOUT_S = 900


def fuzz(bench: Bench) -> Outcome:
    """Run it; the cases are requests."""
    command = [sys.executable, HERE / "fuzz.py", "--requests", str(bench.num_requests)]
    code, text = bench.run("fuzz", command, timeout_s=TIMEOUT_S)
    found = re.search(r"^(\d+) requests in ", text, re.MULTILINE)
    failures = (tail(code, text),) if code or not found else ()
    return Outcome(f"mambad {version('mambad')}", int(found[1]) if found else 0, failures)
