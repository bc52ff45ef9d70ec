"""What a check is given, what it returns, and how programs of others are run: logged, bounded in time."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from environments import Environments
from servers import Servers

HERE = Path(__file__).parent
TIMEOUT_S = 300
MAX_TAIL_CHARS = 1500


@dataclass(frozen=True)
class Outcome:
    """How a check went.

    Attributes:
        version: of what was run.
        num_cases: what was tried, in the units that the check's description names.
        failures: what went wrong; none is a success.
        detail: a number that is worth showing.
    """

    version: str
    num_cases: int
    failures: Sequence[str] = field(default_factory=tuple)
    detail: str = ""


@dataclass(frozen=True)
class Bench:
    """What checks work with.

    Attributes:
        environments: where the clients are installed.
        servers: what they talk to.
        folder: for logs and what the clients write.
        num_examples, num_requests: how much schemathesis and the fuzz try.
    """

    environments: Environments
    servers: Servers
    folder: Path
    num_examples: int
    num_requests: int

    def run(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        cwd: Path = HERE,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> tuple[int, str]:
        """Run a program to its end; return its exit code and what it printed, which also goes to NAME.log."""
        log = self.folder / f"{name}.log"
        # A client finds its own modules only, and takes no proxy for loopback.
        values = {**os.environ, "NO_PROXY": "127.0.0.1", **(environment or {})}
        for variable in ("PYTHONPATH", "PYTHONSAFEPATH"):
            values.pop(variable, None)
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                [str(word) for word in command], cwd=cwd, env=values, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = 124
                file.write(f"ended after {timeout_s} s\n")
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        return code, log.read_text(encoding="utf-8", errors="replace")


def tail(code: int, text: str) -> str:
    """Return what a program said last, for a failure."""
    return f"exit code {code}: …{text.strip()[-MAX_TAIL_CHARS:]}"


def told(code: int, text: str) -> Outcome:
    """Read the last line of a client, as `client_cases.py` prints it."""
    lines = text.strip().splitlines()
    try:
        values = json.loads(lines[-1] if lines else "")
        outcome = Outcome(values["version"], values["cases"], tuple(values["failures"]))
    except (ValueError, KeyError, TypeError):
        return Outcome("unknown", 0, (tail(code, text),))
    if code and not outcome.failures:
        return Outcome(outcome.version, outcome.num_cases, (tail(code, text),))
    return outcome
