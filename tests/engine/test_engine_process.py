"""The engine process and its socket: what it said last is heard, in order, before the news of its end."""

import asyncio

import pytest

from mambad.engine import engine_process
from mambad.engine.config import EngineConfig
from mambad.engine.engine_process import EngineProcess
from mambad.engine.messages import FromEngine, Progress

NUM_MESSAGES = 10 * engine_process.MAX_MESSAGES
TALKER = f"""
import sys
import msgspec, zmq
from mambad.engine.messages import Progress, WorkerStart, encode
start = msgspec.json.decode(sys.stdin.readline(), type=WorkerStart)
context = zmq.Context()
socket = context.socket(zmq.PAIR)
socket.connect(start.endpoint)
for number in range({NUM_MESSAGES}):
    socket.send(encode(Progress("talk", number, {NUM_MESSAGES})))
socket.close()
context.term()
sys.exit(7)
"""


def test_all_that_an_ended_process_has_said_is_heard_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_process, "WORKER", ("-c", TALKER))
    heard: list[FromEngine | int] = []

    async def run() -> None:
        has_ended = asyncio.Event()

        def end(code: int) -> None:
            heard.append(code)
            has_ended.set()

        process = EngineProcess(EngineConfig(model="none"), heard.append, end)
        process.start()
        # The loop hears of everything at once, as it does when it was busy.
        await asyncio.sleep(0)
        process._process.wait()  # type: ignore[union-attr]
        await asyncio.wait_for(has_ended.wait(), 10)
        await process.stop(1)

    asyncio.run(run())
    assert heard == [*(Progress("talk", number, NUM_MESSAGES) for number in range(NUM_MESSAGES)), 7]
