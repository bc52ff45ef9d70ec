"""Two servers behind a proxy are replaced one after the other while clients stream: nothing may be lost.

    make rolling            make rolling ROLLING_ARGS="--proxy nginx --requests 1000"

Every answer is compared, byte for byte, with what a server says alone. Exit code 1 if a request failed, an
answer was wrong, or a server did not leave in peace.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from toy_load import questions
from toy_proxy import PROXIES
from toy_rolling import Replacement, Rolling, roll

FLAGS = (
    *("--threads", "1", "--max-num-seqs", "16", "--kv-cache-memory-bytes", "256MiB"),
    *("--drain-grace", "2", "--shutdown-timeout", "10", "--log-level", "warning"),
)
LONG_TOKENS = 1500
"""Of every fifth answer: it takes longer than --drain-grace, so that streams end in the time after that."""


def main() -> int:
    """Run it; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--proxy", choices=PROXIES, default="haproxy")
    parser.add_argument("--requests", type=int, default=500, help="at least so many (500)")
    parser.add_argument("--clients", type=int, default=8, help="at the same time (8)")
    parser.add_argument("--model", default="demo")
    given = parser.parse_args()
    asked = questions(20, 160, with_chats=True, long_tokens=LONG_TOKENS)
    rolling = roll(given.proxy, given.model, FLAGS, asked, given.requests, num_clients=given.clients)
    return report(given.proxy, rolling)


def report(program: str, rolling: Rolling) -> int:
    """Print what happened; return the exit code."""
    outcomes = rolling.outcomes
    wrong = [each for each in outcomes if each.fault.startswith("wrong text")]
    failed = [each for each in outcomes if each.fault and each not in wrong]
    print(f"{program}, {len(outcomes)} streams, {len(failed)} failed, {len(wrong)} wrong")
    for one in rolling.replacements:
        print(line(rolling, one))
    firsts = sorted(each.first_s - each.started_s for each in outcomes if each.first_s)
    print(f"time to the first byte: median {firsts[len(firsts) // 2]:.3f} s, worst {firsts[-1]:.3f} s")
    for name in sorted({each.replica for each in outcomes}):
        print(f"answered by {name}: {sum(each.replica == name for each in outcomes)}")
    for each in (failed + wrong)[:10]:
        print(f"question {each.question} at {each.replica or 'nobody'}: {each.fault}")
    return int(bool(failed or wrong or any(one.exit_code for one in rolling.replacements)))


def line(rolling: Rolling, one: Replacement) -> str:
    """Describe a replacement."""
    old = rolling.on_the_old(one)
    running = sum(each.started_s < one.signalled_s for each in old)
    last_s = max((each.ended_s for each in old), default=one.signalled_s) - one.signalled_s
    return (
        f"{one.name}: {running} streams on it at SIGTERM, {len(old) - running} begun after that, the last "
        f"ended after {last_s:.1f} s; /ready 503 after {1000 * (one.unready_s - one.signalled_s):.0f} ms, "
        f"exit {one.exit_code} after {one.exited_s - one.signalled_s:.1f} s, new one ready after "
        f"{one.ready_s - one.signalled_s:.1f} s; {len(rolling.during(one))} streams meanwhile"
    )


if __name__ == "__main__":
    sys.exit(main())
