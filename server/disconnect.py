"""Ends the work on a request when its client goes away.

Nothing else tells a handler that builds a whole answer; a stream needs it for the time in which it has
nothing to send.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def run_while(work: Coroutine[Any, Any, T], *watchers: Coroutine[Any, Any, None]) -> T:
    """Run `work` until it ends, or until the first of the watchers does; nothing is left running.

    Args:
        work: what produces the answer. If it has ended, its result counts, whatever the watchers say.
        watchers: each returns when there is nobody to work for any more.

    Raises:
        ClientDisconnect: a watcher ended first; `work` was cancelled and its `finally` blocks have run.
    """
    worker = asyncio.create_task(work)
    tasks = [worker, *map(asyncio.create_task, watchers)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            raise ClientDisconnect
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return worker.result()
