"""`make conformance`: clients and tools that nobody here wrote, against real servers on loopback.

    python tests/conformance/run.py [--only NAME,…] [--list] [--lock] [--output FILE]
    python tests/conformance/run.py --markdown FILE > docs/conformance.md

Exit code 1 when a check fails; what is not installed is skipped with a line, and a failure where CI is set.
"""

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from environments import Environments, MissingError
from outcome import Bench
from registry import CHECKS, Check
from report import markdown, table
from servers import Servers

BUILD = Path(__file__).resolve().parents[2] / "build" / "conformance"


def main() -> int:
    """Run; returns the exit code."""
    options = _options()
    if options.list:
        print(*(f"{check.name:<14}{check.tries}" for check in CHECKS), sep="\n")
        return 0
    if options.markdown:
        sys.stdout.write(markdown(_load(options.markdown)))
        return 0
    names = options.only.split(",") if options.only else [check.name for check in CHECKS]
    unknown = set(names) - {check.name for check in CHECKS}
    if unknown:
        sys.stderr.write(f"conformance: no such check: {', '.join(sorted(unknown))}\n")
        return 2
    logs = BUILD / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    results = []
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder, Servers(Path(folder)) as servers:
        bench = Bench(Environments(BUILD, options.lock), servers, logs, options.examples, options.requests)
        for check in CHECKS:
            if check.name in names:
                results.append(_result(check, bench))
                _save(options.output, results)
                _tell(results[-1])
    print(table(results))
    is_strict = bool(os.environ.get("CI"))
    return int(any(each["failures"] or (is_strict and each["skipped"]) for each in results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="NAME,…")
    parser.add_argument("--lock", action="store_true", help="install the newest versions, write locked-*.txt")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--output", type=Path, default=BUILD / "results.json")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--examples", type=int, default=100, help="of each operation, for schemathesis")
    parser.add_argument("--requests", type=int, default=5000, help="of the fuzz")
    return parser.parse_args()


def _result(check: Check, bench: Bench) -> dict[str, Any]:
    """Run a check; whatever happens becomes a result."""
    result: dict[str, Any] = {
        "name": check.name,
        "tries": check.tries,
        "version": "",
        "cases": 0,
        "detail": "",
    }
    result |= {"failures": [], "skipped": "", "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    start_s = time.monotonic()
    try:
        outcome = check.run(bench)
        result |= {"version": outcome.version, "cases": outcome.num_cases, "detail": outcome.detail}
        result["failures"] = [*outcome.failures, *bench.servers.problems()]
        if not outcome.num_cases and not outcome.failures:
            result["failures"].append("it tried nothing")
    except MissingError as error:
        result["skipped"] = str(error)
    except Exception as error:
        result["failures"].append(f"{type(error).__name__}: {error}")
    return result | {"seconds": round(time.monotonic() - start_s, 1)}


def _tell(result: dict[str, Any]) -> None:
    sys.stderr.write(table([result]).splitlines()[1] + "\n")
    for failure in result["failures"]:
        sys.stderr.write(f"  {failure}\n")


def _load(path: Path) -> list[dict[str, Any]]:
    """Return the results of a file, in the order of the checks."""
    if not path.exists():
        return []
    by_name = {each["name"]: each for each in json.loads(path.read_text(encoding="utf-8"))}
    return [by_name[check.name] for check in CHECKS if check.name in by_name]


def _save(path: Path, results: list[dict[str, Any]]) -> None:
    """Write results; those of other checks in the file stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    merged = {each["name"]: each for each in (*_load(path), *results)}
    path.write_text(json.dumps(list(merged.values()), indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
