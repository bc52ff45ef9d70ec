"""One line every few seconds while an engine has work: tokens a second, requests, slots.

Reads the engines' reports, which come without being asked for; an idle server writes nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from mambad.engine.outputs import EngineStats
from mambad.server.engine_port import EnginePort

logger = logging.getLogger(__name__)

INTERVAL_S = 10.0


class ThroughputLog:
    """Compares each engine's reports.

    Args:
        engine: whose reports.
        model: the name that stands in the lines.
    """

    def __init__(self, engine: EnginePort, model: str) -> None:
        self._engine = engine
        self._model = model
        self._last = engine.stats

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write until the block ends."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def write(self) -> None:
        """Write a line for each engine that has work, or has had some since the last time."""
        last, self._last = self._last, self._engine.stats
        for rank, (before, now) in enumerate(zip(last, self._last, strict=True)):
            if _is_busy(before, now):
                logger.info("%s", throughput(before, now), extra={"engine": rank, "model": self._model})

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            self.write()


def throughput(before: EngineStats, now: EngineStats) -> str:
    """Say what an engine has done between two reports, and what it has to do."""
    seconds = now.time_s - before.time_s if before.time_s else 0.0
    if seconds <= 0:  # the first report, none since, or a clock that was set back
        seconds = INTERVAL_S
    prompt, generation = (
        (getattr(now, name) - getattr(before, name)) / seconds
        for name in ("prompt_tokens", "generation_tokens")
    )
    slots = ", ".join(f"{count} {state}" for state, count in now.slots.items() if count)
    preempted = f"{now.num_preempted} preempted, " if now.num_preempted else ""
    return (
        f"throughput: {prompt:.1f} prompt tokens/s, {generation:.1f} generation tokens/s, "
        f"{now.num_running} running, {now.num_waiting} waiting, {preempted}slots: {slots or 'none'}"
    )


def _is_busy(before: EngineStats, now: EngineStats) -> bool:
    has_work = now.num_running + now.num_waiting + now.num_preempted > 0
    has_had = (now.prompt_tokens, now.generation_tokens) != (before.prompt_tokens, before.generation_tokens)
    return has_work or has_had
