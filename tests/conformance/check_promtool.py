"""promtool: `/metrics` after some traffic, as Prometheus's own lint sees it."""

import shutil
import subprocess

import httpx
from environments import MissingError
from outcome import Bench, Outcome
from servers import KEY


def promtool(bench: Bench) -> Outcome:
    """Run `promtool check metrics`; the cases are metric families."""
    program = shutil.which("promtool")
    if program is None:
        raise MissingError("promtool is not installed (Debian: prometheus)")
    url = bench.servers.url("demo")
    body = {"prompt": "To be", "max_tokens": 4}
    headers = {"Authorization": f"Bearer {KEY}"}
    httpx.post(f"{url}/v1/completions", json=body, headers=headers).raise_for_status()
    # Names with a colon are for recording rules, says the lint; those of vLLM have one, and are left out.
    text = httpx.get(f"{url}/metrics?compat=none").raise_for_status().text
    done = subprocess.run(
        [program, "check", "metrics"], input=text, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    said = (done.stdout + done.stderr).strip()
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    version = " ".join((shown.stdout + shown.stderr).split()[:3]).replace(", version", "")
    families = sum(line.startswith("# TYPE ") for line in text.splitlines())
    return Outcome(version, families, (said or "it failed",) if done.returncode or said else ())
