"""Several request streams read as one, in the order in which their outputs arrive."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from mambad.engine.outputs import RequestOutput
from mambad.engine.stream import RequestStream

Item = tuple[int, RequestOutput | BaseException | None]


async def merge_streams(
    streams: Sequence[RequestStream],
) -> AsyncGenerator[list[tuple[int, RequestOutput]], None]:
    """Yield what has arrived, as (index of the stream, output) pairs; ends when all streams have.

    At most one output a stream is held here: what the reader does not take merges in the stream itself.
    Close it with `aclosing`.

    Raises:
        EngineDeadError: from any of the streams.
    """
    queue: asyncio.Queue[Item] = asyncio.Queue(len(streams))
    readers = [asyncio.create_task(_read(i, stream, queue)) for i, stream in enumerate(streams)]
    try:
        num_open = len(streams)
        while num_open:
            batch: list[tuple[int, RequestOutput]] = []
            items = [await queue.get()]
            while not queue.empty():
                items.append(queue.get_nowait())
            for index, item in items:
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    num_open -= 1
                else:
                    batch.append((index, item))
            if batch:
                yield batch
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _read(index: int, stream: RequestStream, queue: asyncio.Queue[Item]) -> None:
    end: BaseException | None = None
    try:
        async for output in stream:
            await queue.put((index, output))
    except Exception as error:
        end = error
    await queue.put((index, end))
