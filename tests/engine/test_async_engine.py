"""The engine process from the event loop's side: real processes, a tiny real model."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from toy_models import toy_model

from mambad.engine.async_engine import AsyncEngine, QueueLimits
from mambad.engine.config import EngineConfig
from mambad.engine.errors import (
    EngineDeadError,
    LoadError,
    NotReadyError,
    PromptTooLongError,
    QueueFullError,
)
from mambad.engine.outputs import RequestOutput
from mambad.engine.request import Submission
from mambad.engine.sampling_params import SamplingParams
from mambad.engine.stream import RequestStream

LONG = SamplingParams(max_tokens=100_000, ignore_eos=True)


def config(**changes: object) -> EngineConfig:
    settings = {"max_num_seqs": 2, "threads": 1, "kv_cache_memory_bytes": 1 << 22, "max_model_len": 200_000}
    return EngineConfig(model=str(toy_model("mamba2").folder), **{**settings, **changes})  # type: ignore[arg-type]


@asynccontextmanager
async def running(limits: QueueLimits | None = None, **changes: object) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(config(**changes), limits)
    await engine.start()
    try:
        await asyncio.wait_for(engine.wait_ready(), 60)
        yield engine
    finally:
        await engine.stop()


def submit(engine: AsyncEngine, name: str, params: SamplingParams, prompt: int = 5) -> RequestStream:
    return engine.submit([Submission(name, [1] * prompt, params)])[0]


async def collect(stream: RequestStream) -> list[RequestOutput]:
    return [output async for output in stream]


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_requests_stream_and_every_slot_comes_back() -> None:
    async def test() -> None:
        async with running() as engine:
            params = SamplingParams(max_tokens=20, ignore_eos=True, seed=3)
            streams = engine.submit([Submission(f"r{i}", [i, 2, 3], params) for i in range(5)])
            outputs = await asyncio.gather(*map(collect, streams))
            assert [sum(len(o.token_ids) for o in request) for request in outputs] == [20] * 5
            assert {request[-1].finish_reason for request in outputs} == {"length"}
            assert outputs[0][-1].times is not None
            await until(
                lambda: engine.stats[0].slots.get("free") == 2 and engine.stats[0].generation_tokens == 100
            )
            assert sum(engine.stats[0].slots.values()) == engine.stats[0].slot_capacity

    run(test)


def test_abort_and_early_finish_free_the_slots_within_a_step() -> None:
    async def test() -> None:
        async with running() as engine:
            streams = [submit(engine, f"r{i}", LONG) for i in range(2)]
            for stream in streams:
                while not (await stream.__anext__()).token_ids:
                    pass
            report = (await engine.state_reports(entries=True, ids=True))[0]
            assert {entry["request"] for entry in report["entries"]} == {"r0", "r1"}
            assert report["stale"] is False
            streams[0].abort()
            streams[1].finish_early(1)
            assert (await collect(streams[1]))[-1].finish_reason == "stop"
            await until(lambda: engine.stats[0].slots["free"] == 2)
            assert engine.stats[0].finished["disconnect"] == 1
            assert engine.num_streams == 0

    run(test)


def test_what_cannot_be_served_is_refused_before_it_is_sent() -> None:
    async def test() -> None:
        async with running(QueueLimits(max_queued_requests=1), max_num_seqs=1, max_model_len=50) as engine:
            with pytest.raises(PromptTooLongError, match=r"50 tokens.*contains 50 input tokens"):
                submit(engine, "long", LONG, prompt=50)
            streams = [submit(engine, f"r{i}", LONG) for i in range(2)]
            with pytest.raises(QueueFullError, match="the limit is 1"):
                submit(engine, "r2", LONG)
            engine.start_draining()
            assert engine.status.phase == "draining"
            engine.refuse_new()
            with pytest.raises(NotReadyError) as caught:
                submit(engine, "r3", LONG)
            assert caught.value.code == "draining"
            for stream in streams:
                stream.abort()
            assert await engine.drained(5) == 0

    run(test)


def test_ending_all_at_shutdown_gives_every_stream_its_last_output() -> None:
    async def test() -> None:
        async with running() as engine:
            streams = [submit(engine, f"r{i}", LONG) for i in range(4)]
            assert await engine.drained(0.3) == 4
            engine.end_all("the server is shutting down")
            outputs = await asyncio.gather(*map(collect, streams))
            assert {request[-1].finish_reason for request in outputs} == {"shutdown"}
            assert await engine.drained(5) == 0

    run(test)


def test_a_killed_engine_is_seen_within_a_second_and_its_streams_fail() -> None:
    async def test() -> None:
        async with running() as engine:
            stream = submit(engine, "a", LONG)
            await stream.__anext__()
            os.kill(engine.ranks[0].pid, signal.SIGKILL)
            start_s = time.monotonic()
            with pytest.raises(EngineDeadError, match="ended with code -9"):
                await collect(stream)
            assert time.monotonic() - start_s < 1
            assert engine.status.phase == "dead"
            with pytest.raises(EngineDeadError):
                submit(engine, "b", LONG)
            assert (await engine.state_reports())[0]["stale"] is True

    run(test)


def test_a_stopped_engine_is_seen_after_the_stall_timeout_and_killed() -> None:
    async def test() -> None:
        async with running(QueueLimits(engine_stall_timeout_s=1.0)) as engine:
            pid = engine.ranks[0].pid
            stream = submit(engine, "a", LONG)
            await stream.__anext__()
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(EngineDeadError, match="no progress"):
                await asyncio.wait_for(collect(stream), 5)
            assert not is_alive(pid)

    run(test)


def test_a_model_that_cannot_be_loaded_is_reported_with_its_reason() -> None:
    async def test() -> None:
        engine = AsyncEngine(EngineConfig(model="/nowhere/at/all"))
        await engine.start()
        with pytest.raises(LoadError, match="/nowhere/at/all"):
            await asyncio.wait_for(engine.wait_ready(), 30)
        await engine.stop()

    run(test)


def test_stopping_leaves_no_process_and_no_folder_behind() -> None:
    async def test() -> None:
        async with running() as engine:
            pid, folder = engine.ranks[0].pid, engine.ranks[0]._process.folder
            assert folder.stat().st_mode & 0o777 == 0o700
        assert not is_alive(pid)
        assert not folder.exists()

    run(test)


FRONT_END = """
import asyncio, sys
from mambad.engine.async_engine import AsyncEngine
from mambad.engine.config import EngineConfig
async def main():
    engine = AsyncEngine(EngineConfig(model=sys.argv[1], threads=1, kv_cache_memory_bytes=1 << 22))
    await engine.start()
    await engine.wait_ready()
    print(engine.ranks[0].pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def test_a_killed_front_end_leaves_no_engine_behind() -> None:
    command = [sys.executable, "-c", FRONT_END, str(toy_model("mamba2").folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as front_end:
        assert front_end.stdout is not None
        pid = int(front_end.stdout.readline())
        assert is_alive(pid)
        front_end.kill()
    deadline = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(pid)
