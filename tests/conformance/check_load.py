"""Load generators: guidellm and aiperf, with the demo model's tokenizer from its folder."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from outcome import Bench, Outcome, tail

DEMO = Path(__file__).parents[2] / "configs" / "demo"
NUM_REQUESTS = 12
CONCURRENCY = 2


def guidellm(bench: Bench) -> Outcome:
    """Run it at a fixed concurrency; the cases are requests."""
    program = bench.environments.program("guidellm", "guidellm")
    output = _empty(bench.folder / "guidellm")
    backend = (
        f"kind=openai_http,target={bench.servers.url('tools')},request_format=/v1/completions,model=demo"
    )
    command = [
        program, "run", "--backend", backend,
        "--profile", f"kind=concurrent,streams={CONCURRENCY}",
        "--constraint", f"kind=max_requests,count={NUM_REQUESTS}",
        "--tokenizer", f"kind=huggingface_auto,model={DEMO}",
        "--data", "kind=synthetic_text,prompt_tokens=20,output_tokens=8",
        "--output", "kind=console", "--output", f"kind=json,path={output / 'report.json'}",
        "--disable-console-interactive",
    ]  # fmt: skip
    code, text = bench.run("guidellm", command, cwd=output, environment={"HF_HUB_OFFLINE": "1"})
    version = _version(bench, program, "guidellm")
    report = output / "report.json"
    if code or not report.exists():
        return Outcome(version, 0, (tail(code, text),))
    totals = json.loads(report.read_text(encoding="utf-8"))["benchmarks"][0]["metrics"]["request_totals"]
    failures = [] if totals["errored"] == 0 and totals["successful"] >= NUM_REQUESTS else [str(totals)]
    return Outcome(version, int(totals["successful"]), tuple(failures))


def aiperf(bench: Bench) -> Outcome:
    """Run it with streams, for completions and for chats; the cases are requests."""
    program = bench.environments.program("aiperf", "aiperf")
    version = _version(bench, program, "aiperf")
    num_done, failures = 0, []
    for endpoint in ("completions", "chat"):
        output = _empty(bench.folder / f"aiperf-{endpoint}")
        command = [
            program, "profile", "-m", "demo", "--url", bench.servers.url("tools"),
            "--endpoint-type", endpoint, "--streaming", "--concurrency", str(CONCURRENCY),
            "--request-count", str(NUM_REQUESTS), "--tokenizer", DEMO,
            "--synthetic-input-tokens-mean", "20", "--output-tokens-mean", "8",
            "--use-server-token-count", "--ui", "none", "--output-artifact-dir", output,
        ]  # fmt: skip
        # With HF_HUB_OFFLINE it would look for the folder in the hub's cache.
        environment = {name: "" for name in ("HF_HUB_OFFLINE",) if name in os.environ}
        code, text = bench.run(f"aiperf-{endpoint}", command, cwd=output, environment=environment)
        found = sorted(output.rglob("profile_export_aiperf.json"))
        if code or not found:
            failures.append(f"{endpoint}: {tail(code, text)}")
            continue
        values: dict[str, Any] = json.loads(found[0].read_text(encoding="utf-8"))
        count = int(values["request_count"]["avg"])
        num_done += count
        if count != NUM_REQUESTS or values.get("error_request_count"):
            failures.append(f"{endpoint}: {count} requests, {values.get('error_request_count')} errors")
    return Outcome(version, num_done, tuple(failures))


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _version(bench: Bench, program: Path, name: str) -> str:
    code = f"from importlib.metadata import version; print('{name}', version('{name}'))"
    return bench.run(f"{name}-version", [program.with_name("python"), "-c", code])[1].strip()
