"""`make monitoring`: a real Prometheus scrapes a loaded server, and every query is answered with data.

    python tests/deploy/monitoring.py [--seconds 120]

Starts `mambad serve demo` and `prometheus` with the rules, keeps the server busy (streams, faulty requests,
vanishing clients), then asks every query of the dashboard, of the recording rules and of dashboards for vLLM,
looks for alerts, and has promtool judge /metrics. At last it injects faults: a lost slot, NaN logits and an
engine that hangs, each of which has to fire its alert. Exits with 1 where an answer or an alert is missing.
"""

import argparse
import contextlib
import math
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from monitoring_queries import RULES, VLLM_QUERIES, dashboard, dashboard_queries, recorded_names
from toy_process import serve

CLIENTS = 6
START_TIMEOUT_S = 30
ALERT_TIMEOUT_S = 58
FAULTS = {
    "leak_slot": "MambadStateSlotLeaked",
    "nan_logits": "MambadNonFiniteLogits",
    "hang_engine": "MambadEngineStalled",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120, help="of load")
    options = parser.parse_args()
    missing = [program for program in ("prometheus", "promtool") if shutil.which(program) is None]
    if missing:
        print(f"{' and '.join(missing)} not installed (Debian: prometheus)", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory() as folder,
        serve("demo", "--threads", "1", "--enable-fault-injection") as server,
        prometheus(Path(folder), server.url) as url,
    ):
        load(server.url, options.seconds)
        failed = report(url, server.url)
        return int(not all(fires(url, server.url, *fault) for fault in FAULTS.items()) or failed)


@contextlib.contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Run a Prometheus that scrapes the target every two seconds; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    targets = {"targets": [target.removeprefix("http://")], "labels": {"namespace": "models"}}
    scrape = {"job_name": "mambad", "static_configs": [targets]}
    config = {
        "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
        "rule_files": [str(RULES)], "scrape_configs": [scrape],
    }  # fmt: skip
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    command = [
        "prometheus", f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    process = subprocess.Popen(command)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)


def wait_until_ready(url: str) -> None:
    """Wait for Prometheus.

    Raises:
        TimeoutError: it does not answer.
    """
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/-/ready").status_code == 200:
                return
        time.sleep(0.2)
    raise TimeoutError("prometheus did not become ready")


def load(url: str, seconds: float) -> None:
    """Keep the server busy from several threads."""
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=client, args=(url, until, number)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def client(url: str, until: float, number: int) -> None:
    """Ask one thing after the other: mostly streams, some faulty, some left before their end."""
    chance = random.Random(number)
    with httpx.Client(base_url=url, timeout=60) as http:
        while time.monotonic() < until:
            body = {"prompt": "Enter the king. " * chance.randint(1, 8), "max_tokens": chance.randint(4, 64)}
            kind = chance.random()
            if kind < 0.1:
                http.post("/v1/completions", json={**body, "temperature": "hot"})
            elif kind < 0.2:
                with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                    next(answer.iter_lines())
            elif kind < 0.8:
                with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                    answer.read()
            else:
                http.post("/v1/completions", json=body)


def report(url: str, target: str) -> bool:
    """Print what was answered and what was not; return whether anything was amiss."""
    queries = {"dashboard": dashboard_queries(), "recorded": recorded_names(), "vllm": VLLM_QUERIES}
    failed = False
    for kind, asked in queries.items():
        empty = [query for query in asked if not values(url, query)]
        print(f"{kind}: {len(asked)} queries, {len(asked) - len(empty)} answered with data")
        for query in empty:
            print(f"  no data: {query}")
        failed |= bool(empty)
    for variable in dashboard()["templating"]["list"]:
        failed |= variable["type"] == "query" and not has_choices(url, variable["name"])
    alerts = httpx.get(f"{url}/api/v1/alerts").json()["data"]["alerts"]
    print(f"alerts: {len(alerts)}")
    for alert in alerts:
        print(f"  {alert['state']}: {alert['labels']}")
    page = httpx.get(f"{target}/metrics", params={"compat": "none"}).content
    lint = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
    print(f"promtool check metrics: {lint.returncode} {lint.stderr.decode().strip()}")
    return failed or bool(alerts) or lint.returncode != 0


def values(url: str, query: str) -> list[float]:
    """Return the numbers that a query is answered with, NaN left out."""
    answer = httpx.get(f"{url}/api/v1/query", params={"query": query}).json()
    assert answer["status"] == "success", answer
    numbers = [float(item["value"][1]) for item in answer["data"]["result"]]
    return [number for number in numbers if not math.isnan(number)]


def has_choices(url: str, label: str) -> bool:
    """Print which values a variable of the dashboard offers; return whether there are any."""
    match = {"match[]": "mambad_requests_running"}
    found = httpx.get(f"{url}/api/v1/label/{label}/values", params=match).json()["data"]
    print(f"variable {label}: {found}")
    return bool(found)


def fires(url: str, target: str, fault: str, alert: str) -> bool:
    """Inject a fault into the server and ask it for something; return whether the alert fires in time."""
    start = time.monotonic()
    httpx.post(f"{target}/debug/faults", json={"name": fault, "times": 1}).raise_for_status()
    asking = threading.Thread(target=ask, args=(target,), daemon=True)
    asking.start()
    firing: set[str] = set()
    while alert not in firing and time.monotonic() < start + ALERT_TIMEOUT_S:
        time.sleep(1)
        alerts = httpx.get(f"{url}/api/v1/alerts").json()["data"]["alerts"]
        firing = {item["labels"]["alertname"] for item in alerts if item["state"] == "firing"}
    print(f"{fault}: after {time.monotonic() - start:.0f} s these fire: {sorted(firing)}")
    return alert in firing


def ask(target: str) -> None:
    """Ask for a completion that may fail."""
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(f"{target}/v1/completions", json={"prompt": "Enter", "max_tokens": 8}, timeout=90)


if __name__ == "__main__":
    sys.exit(main())
