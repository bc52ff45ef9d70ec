"""Load: what is asked, and when. Fixed concurrency (a closed loop) or Poisson arrivals (an open one).

Everything random is drawn from one seed before the clock starts, so that two runs ask the same.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mambad.server.bench_client import Exchange, Target, stream_completion

LETTERS = "abcdefghijklmnopqrstuvwxyz"
FIRST_TOKEN_ID = 3
"""Lower ids are often special tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One measurement.

    Attributes:
        num_requests: how many in all.
        concurrency: so many at any time, each followed by the next; None when `rate` is set.
        rate: arrivals a second, independent of each other.
        timeout_s: after which a request counts as an error.
    """

    num_requests: int
    concurrency: int | None = None
    rate: float | None = None
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """What the requests say.

    Attributes:
        model: served name.
        input_tokens, output_tokens: of each request; a text has about as many tokens as asked for.
        max_token_id: prompts are token ids from 3 up to this one.
        is_text: send words in place of ids.
    """

    model: str
    input_tokens: int
    output_tokens: int
    max_token_id: int
    is_text: bool

    def bodies(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Return bodies of requests that differ from the first token on, so that no prefix can be reused."""
        draw = random.Random(seed)
        return [self._body(draw) for _ in range(count)]

    def _body(self, draw: random.Random) -> dict[str, Any]:
        prompt: str | list[int]
        if self.is_text:
            prompt = " ".join("".join(draw.choices(LETTERS, k=2)) for _ in range(self.input_tokens))
        else:
            prompt = [draw.randint(FIRST_TOKEN_ID, self.max_token_id) for _ in range(self.input_tokens)]
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": self.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def arrival_times(rate: float, count: int, seed: int) -> list[float]:
    """Return seconds from the start at which requests arrive: exponential gaps with the mean 1 / rate."""
    draw = random.Random(seed)
    now, times = 0.0, []
    for _ in range(count):
        times.append(now)
        now += draw.expovariate(rate)
    return times


async def run_load(
    target: Target,
    load: Load,
    bodies: Sequence[dict[str, Any]],
    arrivals: Sequence[float] = (),
    on_done: Callable[[], None] = lambda: None,
) -> tuple[list[Exchange], float]:
    """Send all bodies and return what came of them, in no order, with the seconds it took in all.

    Args:
        target: whom to ask.
        load: concurrency or rate.
        bodies: one a request.
        arrivals: from `arrival_times`, with `load.rate`.
        on_done: called after each request.
    """
    done: list[Exchange] = []
    start_s = time.perf_counter()

    async def ask(body: dict[str, Any]) -> None:
        done.append(await stream_completion(target, body, load.timeout_s))
        on_done()

    async def ask_at(delay_s: float, body: dict[str, Any]) -> None:
        await asyncio.sleep(start_s + delay_s - time.perf_counter())
        await ask(body)

    waiting = iter(bodies)

    async def ask_one_after_another() -> None:
        for body in waiting:
            await ask(body)

    async with asyncio.TaskGroup() as tasks:
        if load.concurrency is None:
            for delay_s, body in zip(arrivals, bodies, strict=True):
                tasks.create_task(ask_at(delay_s, body))
        else:
            for _ in range(load.concurrency):
                tasks.create_task(ask_one_after_another())
    return done, time.perf_counter() - start_s
