"""Turns a running request into an HTTP answer: events as they come, or one body at the end.

The only place that knows the difference between the two, for completions and chats. Ends every stream with
[DONE].
"""

from collections.abc import Sequence

import orjson
from starlette.responses import Response

from mambad.server.choice import Delta
from mambad.server.convert import CompletionPlan
from mambad.server.reply import Reply
from mambad.server.run_reader import RunReader
from mambad.server.sse import DONE, Write, error_event, event


class CompletionAnswer:
    """Answers one request.

    Args:
        plan, reader, reply: the request, what reads its streams, and how its answer looks.
    """

    def __init__(self, plan: CompletionPlan, reader: RunReader, reply: Reply) -> None:
        self._plan = plan
        self._reader = reader
        self._reply = reply

    @property
    def reader(self) -> RunReader:
        """What reads the request's streams."""
        return self._reader

    def close(self) -> None:
        """Give the request up if it has not ended."""
        self._reader.close()

    async def whole(self) -> Response:
        """Return the answer in one piece.

        Raises:
            ApiError, EngineError: what went wrong.
        """
        async with self._reader.reading() as batches:
            async for batch in batches:
                for index, delta in batch:
                    self._reply.add(index, delta)
                self._count_calls(batch)
        body = self._reply.body(self._reader.usage())
        return Response(orjson.dumps(body), media_type="application/json")

    async def stream(self, write: Write) -> None:
        """Write the answer event by event; failures are events too."""
        ending = DONE
        try:
            await self._write_events(write)
        except Exception as exc:
            ending = error_event(self._reader.failure(exc)) + DONE
        await write(ending)

    async def _write_events(self, write: Write) -> None:
        reader, reply, plan = self._reader, self._reply, self._plan
        usage = reader.usage()
        async with reader.reading() as batches:
            async for batch in batches:
                last = -1 if plan.include_usage or not reader.is_finished else len(batch) - 1
                if last >= 0 or plan.continuous_usage:  # no other chunk tells of it
                    usage = reader.usage()
                events = [
                    event(chunk)
                    for place, (index, delta) in enumerate(batch)
                    for chunk in reply.chunks(index, delta, usage, is_last=place == last)
                ]
                self._count_calls(batch)
                if events:
                    await write(b"".join(events))
            if plan.include_usage:
                await write(event(reply.usage_chunk(reader.usage())))

    def _count_calls(self, batch: Sequence[tuple[int, Delta]]) -> None:
        """Count the choices that have just ended in calls of tools."""
        for index, delta in batch:
            if delta.finish_reason is not None and self._reply.ends_in_calls(index):
                self._reader.count_calls(index)
