"""A line of throughput while there is work, none while there is not."""

import asyncio
from dataclasses import dataclass

import pytest

from mambad.engine.outputs import EngineStats
from mambad.server import throughput_log
from mambad.server.throughput_log import ThroughputLog

IDLE = EngineStats(time_s=100.0, slots={"free": 4, "active": 0}, prompt_tokens=50, generation_tokens=70)
BUSY = EngineStats(
    time_s=110.0, slots={"free": 1, "active": 3}, prompt_tokens=150, generation_tokens=270, num_running=3,
    num_waiting=2,
)  # fmt: skip


@dataclass
class Engine:
    stats: tuple[EngineStats, ...]


@pytest.fixture(autouse=True)
def _log_everything(caplog):
    caplog.set_level("INFO", "mambad")


def test_a_busy_engine_tells_what_it_does(caplog):
    engine = Engine((IDLE, IDLE))
    log = ThroughputLog(engine, "toy")
    engine.stats = (IDLE, BUSY)
    log.write()
    (line,) = caplog.records
    assert line.getMessage() == (
        "throughput: 10.0 prompt tokens/s, 20.0 generation tokens/s, 3 running, 2 waiting, "
        "slots: 1 free, 3 active"
    )
    assert (line.engine, line.model) == (1, "toy")


def test_work_that_came_and_went_between_two_looks_is_told_and_idleness_is_not(caplog):
    engine = Engine((IDLE,))
    log = ThroughputLog(engine, "toy")
    log.write()
    assert caplog.records == []
    engine.stats = (EngineStats(time_s=110.0, prompt_tokens=60, generation_tokens=75),)
    log.write()
    log.write()
    assert [line.getMessage().split(", ")[1] for line in caplog.records] == ["0.5 generation tokens/s"]


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (IDLE, {"prompt_tokens": 50}, "0.0 prompt tokens/s, 20.0 generation tokens/s, 0 running"),
        (BUSY, {"prompt_tokens": 250, "time_s": 105.0}, "10.0 prompt tokens/s, 20.0 generation tokens/s"),
    ],
    ids=["the end of a long answer", "a clock that is set back"],
)
def test_rates_are_of_what_was_done_in_between(caplog, before, now, told):
    engine = Engine((before,))
    log = ThroughputLog(engine, "toy")
    ended = {"time_s": 110.0, "generation_tokens": before.generation_tokens + 200}
    engine.stats = (EngineStats(**ended | now),)
    log.write()
    assert told in caplog.text


def test_an_engine_that_hangs_with_work_is_told_without_a_division_by_nothing(caplog):
    engine = Engine((BUSY,))
    ThroughputLog(engine, "toy").write()
    assert "0.0 generation tokens/s, 3 running" in caplog.text


def test_it_looks_by_itself_until_it_is_ended(caplog, monkeypatch):
    monkeypatch.setattr(throughput_log, "INTERVAL_S", 0.01)

    async def run():
        async with ThroughputLog(Engine((BUSY,)), "toy").running():
            await asyncio.sleep(0.1)
        num_lines = len(caplog.records)
        await asyncio.sleep(0.03)
        return num_lines

    num_lines = asyncio.run(run())
    assert 0 < num_lines == len(caplog.records)
