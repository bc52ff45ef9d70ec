"""schemathesis: requests made from `/openapi.json`, valid and invalid, with all of its checks."""

import json

from outcome import HERE, Bench, Outcome, tail

TIMEOUT_S = 900


def schemathesis(bench: Bench) -> Outcome:
    """Run it; the cases are requests."""
    report = bench.folder / "schemathesis.json"
    report.unlink(missing_ok=True)
    url = bench.servers.url("small")
    command = [
        bench.environments.program("schemathesis", "schemathesis"),
        "--config-file", HERE / "schemathesis.toml", "run", f"{url}/openapi.json",
        "--checks", "all", "--max-examples", str(bench.num_examples), "--seed", "1",
        "--report-json-path", report,
    ]  # fmt: skip
    code, text = bench.run("schemathesis", command, cwd=bench.folder, timeout_s=TIMEOUT_S)
    if not report.exists():
        return Outcome("unknown", 0, (tail(code, text),))
    values = json.loads(report.read_text(encoding="utf-8"))
    failures = [f"{each['title']}: {each['count']} × {each['operations']}" for each in values["failures"]]
    failures += [f"{each['title']}: {each['count']}" for each in values["errors"]]
    if code and not failures:
        failures.append(tail(code, text))
    operations = values["operations"]
    detail = f"{operations['tested']} of {operations['total']} operations"
    version = f"schemathesis {values['schemathesis_version']}"
    return Outcome(version, values["test_cases"]["generated"], tuple(failures), detail)
