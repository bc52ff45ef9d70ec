"""Runs long computations beside the event loop, few at a time.

Small ones run at once where they are: a thread costs more than they do. Large ones share one thread, so that
any number of huge prompts takes one core and leaves the others, and the loop, to everybody else.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mambad.server.json_body import LARGE_BYTES

INLINE_BYTES = 4096
NUM_THREADS = 2

T = TypeVar("T")


class Offload:
    """Two small thread pools. Used from the event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(NUM_THREADS, "mambad-convert")
        self._large_pool = ThreadPoolExecutor(1, "mambad-convert-large")

    async def run(self, num_bytes: int, function: Callable[[], T]) -> T:
        """Return `function()`.

        Args:
            num_bytes: size of what it works on; decides where it runs.
            function: must be safe to run in any thread; cancelling the caller does not stop it.
        """
        if num_bytes <= INLINE_BYTES:
            return function()
        pool = self._large_pool if num_bytes > LARGE_BYTES else self._pool
        return await asyncio.get_running_loop().run_in_executor(pool, function)
