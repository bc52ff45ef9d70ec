"""Soak: a real server with tiny pools, hostile clients and faults at random, for as long as you like.

    make soak MINUTES=30            make soak MINUTES=10 SOAK_ARGS="--data-parallel-size 2"

Every request's right answer is computed alone at first. Then workers ask, stream, change their mind and
leave at random instants, with several choices a request, while steps fail, are slow, lose slots, give NaN,
and what is free is poisoned. At the end nothing may be held, every completed answer must have been the right
one byte for byte, nothing may have failed but what was ordered, and memory must have stopped growing.
Exit code 1 and a line for each promise that was broken.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))
from toy_process import ServedProcess, metric, serve, served_model, wait_until_all_slots_are_free

NUM_REQUESTS = 120
NUM_WORKERS = 14
FAULTS = ("fail_step", "leak_slot", "nan_logits", "poison_free", "slow_step")
INJECTED_CODES = {"engine_error", "nonfinite_logits"}
MAX_SLOPE_MIB_A_MINUTE = 1.0
SERVER_FLAGS = (
    *("--load-format", "dummy", "--threads", "1", "--max-num-seqs", "6", "--num-state-slots", "6"),
    *("--kv-cache-memory-bytes", "150KiB", "--state-cache-bytes", "60KiB", "--max-model-len", "400"),
    *("--max-num-batched-tokens", "128", "--enable-fault-injection", "--log-level", "critical"),
)
"""Pools for six requests, blocks for two of the longest: requests are preempted, by swap and by replay."""


@dataclass
class Tally:
    """What happened."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    num_scrapes: int = 0


def make_requests() -> list[dict[str, Any]]:
    """Return requests of mixed lengths, the same in every run."""
    draw = random.Random(11)
    return [
        {
            "prompt": [draw.randrange(250) for _ in range(draw.choice((1, 3, 17, 63, 64, 65, 128, 200)))],
            "max_tokens": draw.choice((1, 5, 20, 60, 120, 200)),
            "n": draw.choice((1, 1, 1, 2, 3)),
            "seed": index,
            "temperature": draw.choice((0.0, 0.7, 1.3)),
            "presence_penalty": draw.choice((0.0, 0.0, 0.5)),
            "logprobs": draw.choice((None, None, 2)),
        }
        for index in range(NUM_REQUESTS)
    ]


def answer_of(body: dict[str, Any]) -> list[Any]:
    """Return what of an answer must always be the same."""
    return [(c["text"], c["finish_reason"], c["logprobs"]) for c in body["choices"]]


async def ask(client: httpx.AsyncClient, request: dict[str, Any], right: list[Any], tally: Tally) -> None:
    """Ask for a whole answer, and perhaps leave before it comes."""
    call = client.post("/v1/completions", json=request)
    try:
        patience_s = random.uniform(0.0, 0.4) if random.random() < 0.25 else 60.0
        answer = await asyncio.wait_for(call, patience_s)
    except TimeoutError:
        tally.outcomes["left before the answer"] += 1
        return
    if answer.status_code == 200:
        is_right = json.loads(json.dumps(answer_of(answer.json()))) == right
        tally.outcomes["right answer" if is_right else "WRONG ANSWER"] += 1
    elif answer.status_code == 500 and answer.json()["error"]["code"] in INJECTED_CODES:
        tally.outcomes["failed as ordered"] += 1
    elif answer.status_code == 429:
        tally.outcomes["refused: queue full"] += 1
    else:
        tally.broken.append(f"unexpected answer {answer.status_code}: {answer.text[:200]}")


async def stream(client: httpx.AsyncClient, request: dict[str, Any], right: list[Any], tally: Tally) -> None:
    """Read a stream, and perhaps leave in the middle."""
    num_events = random.randrange(1, 40) if random.random() < 0.4 else 10**9
    texts, reasons = [""] * request["n"], [None] * request["n"]
    async with client.stream("POST", "/v1/completions", json={**request, "stream": True}) as response:
        if response.status_code != 200:
            tally.outcomes[f"stream refused: {response.status_code}"] += 1
            return
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                break
            if not line.startswith("data: "):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                is_ordered = event["error"]["code"] in INJECTED_CODES
                tally.outcomes["stream failed as ordered" if is_ordered else "STREAM FAILED"] += 1
                return
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
                reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
            num_events -= 1
            if num_events == 0:
                tally.outcomes["left in mid-stream"] += 1
                return
    is_right = [[text, reason] for text, reason in zip(texts, reasons, strict=True)] == [r[:2] for r in right]
    tally.outcomes["right stream" if is_right else "WRONG STREAM"] += 1


async def work(url: str, requests: list[Any], right: list[Any], tally: Tally, end_s: float) -> None:
    """Be a client until the end."""
    async with httpx.AsyncClient(base_url=url, timeout=90) as client:
        while time.monotonic() < end_s:
            index = random.randrange(len(requests))
            act = stream if random.random() < 0.5 else ask
            await act(client, requests[index], right[index], tally)


async def break_things(url: str, num_ranks: int, tally: Tally, end_s: float) -> None:
    """Order a fault every second or two."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        while time.monotonic() < end_s - 3:
            await asyncio.sleep(random.uniform(0.5, 2.0))
            name = random.choice(FAULTS)
            order = {"name": name, "ms": 80, "engine": random.randrange(num_ranks)}
            if (await client.post("/debug/faults", json=order)).json()["is_ordered"]:
                tally.faults[name] += 1


async def watch(served: ServedProcess, tally: Tally, end_s: float) -> None:
    """Scrape twice a second: sums must hold in every scrape; note the memory of all processes."""
    start_s = time.monotonic()
    async with httpx.AsyncClient(base_url=served.url, timeout=30) as client:
        while time.monotonic() < end_s:
            await asyncio.sleep(0.5)
            text = (await client.get("/metrics")).text
            for kind in ("state_slot", "kv_block"):
                if metric(text, f"mambad_{kind}s") != metric(text, f"mambad_{kind}_capacity"):
                    tally.broken.append(f"mambad_{kind}s does not add up in a scrape")
            tally.num_scrapes += 1
            pids = [served.process.pid, *served.engine_pids()]
            minutes = (time.monotonic() - start_s) / 60
            tally.memory.append((minutes, sum(resident_mib(pid) for pid in pids)))


def resident_mib(pid: int) -> float:
    """Return a process's resident memory in MiB."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * 4096 / 2**20


def slope(points: list[tuple[float, float]]) -> float:
    """Return the least-squares slope of the second half: the first half warms up."""
    half = points[len(points) // 2 :]
    mean_x, mean_y = (sum(values) / len(half) for values in zip(*half, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in half)
    return sum((x - mean_x) * (y - mean_y) for x, y in half) / spread


async def soak(served: ServedProcess, minutes: float, num_ranks: int) -> Tally:
    """Compute the right answers, then run everything at once until the time is over."""
    tally, requests = Tally(), make_requests()
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        right = []
        for request in requests:
            body = (await client.post("/v1/completions", json=request)).json()
            right.append(json.loads(json.dumps(answer_of(body))))
    end_s = time.monotonic() + 60 * minutes
    workers = [work(served.url, requests, right, tally, end_s) for _ in range(NUM_WORKERS)]
    others = (break_things(served.url, num_ranks, tally, end_s), watch(served, tally, end_s))
    await asyncio.gather(*workers, *others)
    return tally


def judge(served: ServedProcess, tally: Tally) -> dict[str, Any]:
    """Compare what is left with what was promised, and return the figures."""
    wait_until_all_slots_are_free(served.url, timeout_s=10)
    text = httpx.get(f"{served.url}/metrics").text
    figures = {
        "outcomes": dict(sorted(tally.outcomes.items())),
        "faults": dict(sorted(tally.faults.items())),
        "scrapes": tally.num_scrapes,
        "audits": metric(text, "mambad_state_audits_total"),
        "preemptions": metric(text, "mambad_preemptions_total"),
        "leaked": metric(text, "mambad_state_slots_leaked_total"),
        "reclaimed": metric(text, "mambad_state_slots_reclaimed_total"),
        "resident_mib": round(tally.memory[-1][1], 1),
        "slope_mib_a_minute": round(slope(tally.memory), 3),
    }
    for name in ("WRONG ANSWER", "WRONG STREAM", "STREAM FAILED"):
        if tally.outcomes[name]:
            tally.broken.append(f"{name}: {tally.outcomes[name]} times")
    if figures["leaked"] != figures["reclaimed"] or figures["leaked"] > tally.faults["leak_slot"]:
        tally.broken.append("slots leaked that were not ordered to, or were not reclaimed")
    if not figures["preemptions"]:
        tally.broken.append("nothing was preempted: the pools were not tiny enough to show anything")
    if figures["slope_mib_a_minute"] > MAX_SLOPE_MIB_A_MINUTE:
        tally.broken.append(f"memory grows by {figures['slope_mib_a_minute']} MiB a minute")
    return figures


def main() -> int:
    """Run the soak; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--data-parallel-size", type=int, default=1)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    num_ranks = arguments.data_parallel_size
    flags = ["--async-scheduling", "-dp", str(num_ranks)]
    if num_ranks > 1:
        flags.append("--data-parallel-lockstep")
    with serve(served_model(), *SERVER_FLAGS, *flags) as served:
        try:
            tally = asyncio.run(soak(served, arguments.minutes, num_ranks))
            figures = judge(served, tally)
        except BaseException:
            print("the server's last words:", *served.lines[-40:], sep="\n", file=sys.stderr)
            raise
    print(json.dumps(figures, indent=2))
    for line in tally.broken[:20]:
        print(f"BROKEN: {line}")
    print("nothing was lost" if not tally.broken else f"{len(tally.broken)} promises were broken")
    return 1 if tally.broken else 0


if __name__ == "__main__":
    sys.exit(main())
