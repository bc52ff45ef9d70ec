"""Sends thousands of type-confused requests to a real server: no 5xx, no hang, small errors, same answers.

    python tests/conformance/fuzz.py [--requests 5000] [--seed 1] [--url URL]

Without a URL it serves the demo model itself, with a short context so that no request takes long.
"""

import argparse
import itertools
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from toy_process import serve
from type_confusion import Confused, confused_requests, problem_of

TIMEOUT_S = 60
FIXED = {"prompt": "To be, or", "max_tokens": 16, "temperature": 0, "logprobs": 3, "echo": True}
SERVE_FLAGS = ("--max-model-len", "64", "--max-num-seqs", "8")
NUM_SHOWN = 10


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--url")
    options = parser.parse_args()
    with ExitStack() as cleanup:
        url = options.url or cleanup.enter_context(serve("demo", *SERVE_FLAGS)).url
        client = cleanup.enter_context(httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False))
        before = fixed_answer(client)
        start_s = time.monotonic()
        description = client.get("/openapi.json").json()
        requests = itertools.islice(confused_requests(description, options.seed), options.requests)
        with ThreadPoolExecutor(options.threads) as pool:
            results = list(pool.map(lambda request: send(client, request), requests))
        problems = [problem for _, _, problem in results if problem]
        if fixed_answer(client) != before:
            problems.append("the fixed prompt has another answer now")
        if client.get("/health").status_code != 200:
            problems.append("the server is not healthy any more")
    report(results, problems, time.monotonic() - start_s)
    return bool(problems)


def fixed_answer(client: httpx.Client) -> object:
    """Return what the server says to a prompt that never changes."""
    answer = client.post("/v1/completions", json=FIXED)
    answer.raise_for_status()
    return answer.json()["choices"]


def send(client: httpx.Client, request: Confused) -> tuple[str, int, str | None]:
    """Send a request; return its path, the status and what is wrong."""
    head = f"{request.path} {request.body[:400]!r}: "
    try:
        answer = client.post(request.path, content=request.body, headers={"content-type": "application/json"})
    except httpx.HTTPError as error:
        return request.path, 0, f"{head}{type(error).__name__}"
    problem = problem_of(answer.status_code, answer.headers.get("content-type", ""), answer.content)
    return request.path, answer.status_code, problem and head + problem


def report(results: list[tuple[str, int, str | None]], problems: list[str], seconds: float) -> None:
    """Print counts by path and status, and the first problems."""
    counts = Counter((path, status) for path, status, _ in results)
    for (path, status), count in sorted(counts.items()):
        print(f"{path:<24} {status}  {count}")
    print(f"{len(results)} requests in {seconds:.0f} s, {len(problems)} problems")
    print(*problems[:NUM_SHOWN], sep="\n")


if __name__ == "__main__":
    sys.exit(main())
