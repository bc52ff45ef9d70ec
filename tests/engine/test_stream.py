"""A request's way back to its reader."""

import asyncio

import pytest

from mambad.engine.errors import EngineDeadError
from mambad.engine.outputs import RequestOutput, RequestTimes
from mambad.engine.stream import RequestStream


def make() -> tuple[RequestStream, list[object]]:
    calls: list[object] = []
    return RequestStream("a", calls.append, calls.append), calls


def test_a_slow_reader_gets_everything_merged_into_one_output() -> None:
    async def run() -> None:
        stream, _ = make()
        for i in range(5):
            stream.deliver(RequestOutput("a", (i,)))
        stream.deliver(RequestOutput("a", (5,), finish_reason="stop", times=RequestTimes(1, 2, 3)))
        outputs = [output async for output in stream]
        assert [o.token_ids for o in outputs] == [(0, 1, 2, 3, 4, 5)]
        assert outputs[0].finish_reason == "stop"
        assert outputs[0].times == RequestTimes(1, 2, 3)

    asyncio.run(run())


def test_a_waiting_reader_is_woken_by_the_next_output() -> None:
    async def run() -> None:
        stream, _ = make()
        reader = asyncio.create_task(stream.__anext__())
        await asyncio.sleep(0)
        assert not reader.done()
        stream.deliver(RequestOutput("a", (1,)))
        assert (await reader).token_ids == (1,)

    asyncio.run(run())


def test_abort_is_sent_once_and_never_after_the_end() -> None:
    async def run() -> None:
        stream, calls = make()
        stream.abort()
        stream.abort()
        assert calls == ["disconnect"]
        ended, calls = make()
        ended.deliver(RequestOutput("a", (), finish_reason="length"))
        ended.abort()
        ended.finish_early(3)
        assert calls == []

    asyncio.run(run())


def test_finishing_early_tells_how_many_tokens_count() -> None:
    async def run() -> None:
        stream, calls = make()
        stream.finish_early(3)
        stream.abort()
        assert calls == [3]

    asyncio.run(run())


def test_when_the_engine_dies_the_reader_gets_what_came_and_then_the_error() -> None:
    async def run() -> None:
        stream, _ = make()
        stream.deliver(RequestOutput("a", (1,)))
        stream.fail(EngineDeadError("gone"))
        assert (await stream.__anext__()).token_ids == (1,)
        with pytest.raises(EngineDeadError, match="gone"):
            await stream.__anext__()

    asyncio.run(run())
