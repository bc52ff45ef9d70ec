"""mambad on a local Ray Serve: one replica, two under load, one again; nothing may be lost or altered.

    make ray            make ray RAY_ARGS="--clients 12"

Every answer is compared, byte for byte, with what `mambad serve` says. Also: a conversation stays with its
replica, a response is continued where it is kept, a client that leaves ends its request, and a replica whose
engine dies is replaced. Runs on loopback, without a dashboard and without usage statistics. Exit code 1 and a
line for each promise that was broken.
"""

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ["PYTHONPATH"] = sys.path[0]
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_SERVE_LOG_TO_STDERR"] = "0"
# How old the figures are that the autoscaler sees; the default is 10 s.
os.environ["RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S"] = "1"
os.environ["RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S"] = "1"
import httpx
import ray
import yaml
from mambad_ray.application import Arguments, build
from ray import serve
from ray.serve.schema import ServeDeploySchema
from toy_load import CheckedLoad, answers, questions
from toy_process import serve as serve_alone
from toy_proxy import free_ports

SLOTS = 4
MODEL_FLAGS = ("--threads", "1", "--max-num-seqs", str(SLOTS), "--kv-cache-memory-bytes", "64MiB")
NAME = "mambad"
APPLICATION = Path(__file__).resolve().parent
RESPONSES = "/v1/responses"


class Watch:
    """Notes how many replicas run, twice a second."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self.changes: list[tuple[float, int]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """How many run now."""
        return self.changes[-1][1] if self.changes else 0

    def wait_for(self, count: int, timeout_s: float = 90.0) -> float:
        """Wait until so many replicas run; return how long that took."""
        began = time.monotonic()
        while self.running != count:
            assert time.monotonic() < began + timeout_s, f"{self.running} replicas, not {count}"
            time.sleep(0.05)
        return time.monotonic() - began

    def stop(self) -> None:
        """Note nothing more."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(0.5):
            states = serve.status().applications[NAME].deployments["mambad"].replica_states
            running = states.get("RUNNING", 0)
            if running != self.running:
                self.changes.append((time.monotonic() - self.started_s, running))


def start(port: int) -> None:
    """Start Ray, Serve and the application; returns when it takes requests."""
    # Ray turns 127.0.0.1 into the machine's own address and listens there, unless it can't have other nodes.
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    assert ray.util.get_node_ip_address() == "127.0.0.1"
    serve.start(http_options={"host": "127.0.0.1", "port": port, "request_timeout_s": 60})
    arguments = Arguments(
        flags=["demo", *MODEL_FLAGS, "--shutdown-timeout", "20", "--log-level", "warning"],
        max_replicas=2,
        upscale_delay_s=1,
        downscale_delay_s=4,
        metrics_interval_s=0.5,
    )
    serve.run(build(arguments), name=NAME, route_prefix="/")


def check_file() -> list[str]:
    """The file for `serve deploy` is what Serve and the application's builder take."""
    schema = ServeDeploySchema.model_validate(yaml.safe_load((APPLICATION / "serve.yaml").read_text()))
    (application,) = schema.applications
    arguments = Arguments.model_validate(application.args)
    build(arguments)
    as_line = Arguments(flags=" ".join(arguments.flags))  # type: ignore[arg-type]
    is_right = application.import_path == "mambad_ray.application:build" and as_line.flags == arguments.flags
    return [] if is_right else ["serve.yaml names another application"]


def scale(url: str, num_clients: int, asked: Any, expected: list[str], watch: Watch) -> CheckedLoad:
    """One client, many until there are two replicas and for 200 streams more, two until there is one."""
    watch.wait_for(1)
    with CheckedLoad(url, asked, expected, 1, 0.05) as load:
        load.wait_for(10)
        load.resize(num_clients)
        up_s = watch.wait_for(2)
        load.wait_for(len(load.outcomes) + 200)
        load.resize(2)  # streams go on at both while one is taken away
        down_s = watch.wait_for(1)
        load.finish(len(load.outcomes) + 20)
    print(
        f"1 → 2 replicas {up_s:.1f} s after {num_clients} clients came, 2 → 1 {down_s:.1f} s after 2 stayed"
    )
    return load


def report(load: CheckedLoad) -> list[str]:
    """Print what became of the load; return what is wrong."""
    by_replica = Counter(outcome.replica for outcome in load.outcomes)
    firsts = sorted(outcome.first_s - outcome.started_s for outcome in load.outcomes)
    wrong = sum(outcome.fault.startswith("wrong text") for outcome in load.outcomes)
    failed = sum(load.faults().values()) - wrong
    print(f"{len(load.outcomes)} streams, {failed} failed, {wrong} wrong; by replica {dict(by_replica)}")
    print(f"time to the first byte: median {firsts[len(firsts) // 2]:.3f} s, worst {firsts[-1]:.3f} s")
    broken = [f"{count} × {fault}" for fault, count in load.faults().items()]
    return broken + ([] if len(by_replica) >= 2 else ["the second replica answered nothing"])


def check_conversations(client: httpx.Client) -> list[str]:
    """With two replicas: conversations stay, responses are found, prompts of one beginning go one way."""
    broken = []
    places: dict[str, set[str]] = {}
    for number in range(12):
        name = f"conversation {number}"
        previous = None
        for turn in range(3):
            body = {"input": f"turn {turn}", "max_output_tokens": 4, "previous_response_id": previous}
            answer = client.post(RESPONSES, json=body, headers={"X-Session-ID": name})
            if answer.status_code != 200:
                broken.append(f"{name}, turn {turn}: {answer.status_code} {answer.text[:100]}")
                break
            previous = answer.json()["id"]
            places.setdefault(name, set()).add(answer.headers["x-served-by"])
        shared = {"prompt": f"{number} " * 800 + "and then", "max_tokens": 1}
        ends = [{**shared, "prompt": shared["prompt"] + end} for end in ("this", "that")]
        places[f"prefix {number}"] = {
            client.post("/v1/completions", json=body).headers["x-served-by"] for body in ends
        }
    broken += [f"{name} was at {found}" for name, found in places.items() if len(found) != 1]
    used = Counter(next(iter(found)) for found in places.values())
    print(f"{len(places)} conversations and prefixes, each at one replica: {dict(used)}")
    return broken + ([] if len(used) == 2 else ["all of them are at one replica"])


def check_leaving(client: httpx.Client) -> list[str]:
    """A client that leaves frees what it had."""
    body = {"prompt": "Now", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    for _ in range(8):
        with client.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_raw())
    deadline = time.monotonic() + 10
    idle = 0
    while idle < 10 and time.monotonic() < deadline:  # whichever replica answers
        idle = idle + 1 if client.get("/load").json()["server_load"] == 0 else 0
        time.sleep(0.05)
    return [] if idle == 10 else ["requests go on after their clients have left"]


def check_errors(client: httpx.Client) -> list[str]:
    """Errors are mambad's own."""
    found = [
        (client.post("/v1/completions", json={"prompt": 1}), 400),
        (client.post("/v1/completions", content=b"{", headers={"content-type": "application/json"}), 400),
        (client.post("/v1/completions", json={"prompt": "x" * (9 << 20)}), 413),
        (client.get("/nowhere"), 404),
    ]
    return [
        f"{answer.status_code} {answer.text[:100]!r}, not {status}"
        for answer, status in found
        if answer.status_code != status or "message" not in answer.json()["error"]
    ]


def engines() -> list[int]:
    """Return the process ids of the engines: children of this Ray's replicas."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            words = (status.parent / "cmdline").read_bytes().split(b"\0")
            parent = dict(line.split(":", 1) for line in status.read_text().splitlines())["PPid"].strip()
            title = Path(f"/proc/{parent}/cmdline").read_bytes()
            if b"mambad.engine.worker" in words and title.startswith(b"ray::ServeReplica:mambad"):
                found.append(int(status.parent.name))
    return found


def check_death(client: httpx.Client) -> list[str]:
    """A replica whose engine is killed is replaced by another one, without being asked."""
    for pid in engines():
        os.kill(pid, signal.SIGKILL)
    began, body = time.monotonic(), {"prompt": "Now", "max_tokens": 1}
    seen: Counter[tuple[int, str]] = Counter()
    while time.monotonic() < began + 60 and seen[200, ""] == 0:
        answer = client.post("/v1/completions", json=body)
        seen[answer.status_code, "" if answer.status_code == 200 else answer.json()["error"]["code"]] += 1
        time.sleep(0.25)
    print(f"all engines killed: {dict(seen)}, {time.monotonic() - began:.1f} s until a new replica answered")
    return (
        [] if set(seen) <= {(200, ""), (503, "engine_dead")} and seen[200, ""] else [f"after death: {seen}"]
    )


def main() -> int:
    """Run it; print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, default=10, help="at the same time (10)")
    given = parser.parse_args()
    asked = questions(20, 100, with_chats=True)
    with serve_alone("demo", *MODEL_FLAGS) as alone:
        expected = answers(alone.url, asked)
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    began = time.monotonic()
    start(port)
    print(f"Ray {ray.__version__}: the application takes requests after {time.monotonic() - began:.1f} s")
    watch = Watch()
    try:
        broken = check_file() + report(scale(url, given.clients, asked, expected, watch))
        busy = SLOTS + 2  # two replicas' worth, and neither is ever full
        with CheckedLoad(url, asked, expected, busy), httpx.Client(base_url=url, timeout=60) as client:
            watch.wait_for(2)
            broken += check_conversations(client)
        with httpx.Client(base_url=url, timeout=60) as client:
            broken += check_leaving(client) + check_errors(client) + check_death(client)
    finally:
        watch.stop()
        serve.shutdown()
        ray.shutdown()
    print("replicas: " + ", ".join(f"{count} from {at_s:.1f} s" for at_s, count in watch.changes))
    for line in broken:
        print(f"broken: {line}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
