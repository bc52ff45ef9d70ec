"""What the Python clients share: cases that run one after another, and a last line of JSON for the runner.

Runs with each client's own interpreter: standard library only, nothing of mambad.

    python client_NAME.py URL KEY
"""

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

MAX_ERROR_CHARS = 1500
Case = Callable[[Any], None]


class Cases:
    """Functions that take a client and raise when something is wrong, in the order of their definition."""

    def __init__(self) -> None:
        self._cases: list[Case] = []

    def __call__(self, function: Case) -> Case:
        """Decorate a case; its name is the sentence that a failure shows."""
        self._cases.append(function)
        return function

    def run(self, subject: Any, distributions: Sequence[str]) -> int:
        """Run every case; print versions, their number and what failed; return the exit code."""
        failures = []
        for case in self._cases:
            try:
                case(subject)
            except Exception as error:
                traceback.print_exc()
                told = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
                failures.append(f"{case.__name__}: {told}{_line_of(error)}")
        versions = ", ".join(f"{name} {version(name)}" for name in distributions)
        sys.stderr.flush()
        print(json.dumps({"version": versions, "cases": len(self._cases), "failures": failures}), flush=True)
        return bool(failures)


def arguments() -> tuple[str, str]:
    """Return the server's URL, without a path, and its key."""
    _, url, key = sys.argv
    return url, key


def same(actual: object, expected: object) -> None:
    """Raise unless both are equal, with both in the message."""
    if actual != expected:
        raise AssertionError(f"{actual!r} is not {expected!r}")


def raises(kind: type[BaseException], function: Callable[[], object]) -> Any:
    """Return the exception that the function must raise."""
    try:
        result = function()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised; got {result!r}")


def _line_of(error: BaseException) -> str:
    """Return where in the client's file it happened."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "client_" in frame.filename]
    return f" (line {frames[-1].lineno})" if frames else ""
