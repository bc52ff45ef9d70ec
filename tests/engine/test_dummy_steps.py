"""Steps of padding, and padded rows, touch nothing of anybody: a thousand of them, free rows poisoned."""

import pytest
from toy_equality import EqualityEngine, load_toy

from mambad.engine.batch import Batch
from mambad.engine.errors import EngineDeadError

PROMPT = list(range(3, 90))


@pytest.mark.parametrize("family", ["mamba", "mamba2-groups", "granite"])
def test_a_thousand_dummy_steps_change_no_slot_block_or_row(family: str) -> None:
    alone = EqualityEngine(load_toy(family, "reference"), num_slots=1)
    alone.submit("x", PROMPT, seed=1, max_tokens=20)
    right = alone.run()["x"]

    engine = EqualityEngine(load_toy(family, "reference"), num_slots=4, num_blocks=40)
    engine.submit("x", PROMPT, seed=1, max_tokens=20)
    for _ in range(5):
        engine.step()
    engine.engine.poison_free()
    slots = range(1, 5)
    blocks = range(1, engine.cache.blocks.capacity + 1)
    before = [engine.runner.checksum(slot) for slot in slots]
    blocks_before = [engine.runner.block_checksum(block) for block in blocks]
    rows_before = engine.runner._table.rows.clone()
    for number in range(1000):
        engine.engine.dummy_step(min_decode_rows=1 + number % 4)
    assert [engine.runner.checksum(slot) for slot in slots] == before
    assert [engine.runner.block_checksum(block) for block in blocks] == blocks_before
    assert engine.runner._table.rows.equal(rows_before)
    assert engine.run()["x"] == right


def test_a_batch_of_three_padded_to_four_leaves_a_parked_request_alone() -> None:
    """TRT-LLM #13278: the fourth request is parked; its state may not move while others decode beside it."""
    engine = EqualityEngine(load_toy("granite", "reference"), num_slots=4, num_blocks=80)
    for i in range(4):
        engine.submit(f"r{i}", PROMPT[: 20 + i], seed=i, max_tokens=30)
    for _ in range(5):
        engine.step()
    parked = engine.scheduler.requests.by_id("r3")
    assert parked is not None
    slot = engine.cache.allocation(parked.key).slot.id
    parked.is_yielding = True  # the scheduler passes it over from now on
    before = engine.runner.checksum(slot)
    engine.scheduler._preempt_yielding = lambda: None  # type: ignore[method-assign]
    sizes = []
    launch = engine.runner.launch

    def record(batch: Batch):  # type: ignore[no-untyped-def]
        sizes.append(len(batch.decodes))
        return launch(batch)

    engine.runner.launch = record  # type: ignore[method-assign]
    for _ in range(10):
        engine.step()
    assert sizes == [3] * 10
    assert engine.runner.checksum(slot) == before
    engine.runner.close()


def test_one_step_of_padding_that_fails_ends_nothing_and_two_in_a_row_end_the_engine() -> None:
    engine = EqualityEngine(load_toy("mamba", "reference"), num_slots=2)
    engine.submit("x", PROMPT, seed=1, max_tokens=10)
    engine.step()
    launch, faults = engine.runner.launch, [RuntimeError("once")]

    def fail(batch: Batch):  # type: ignore[no-untyped-def]
        if faults:
            raise faults.pop()
        return launch(batch)

    engine.runner.launch = fail  # type: ignore[method-assign]
    engine.engine.dummy_step(min_decode_rows=1)
    assert not faults
    faults += [RuntimeError("second"), RuntimeError("first")]
    with pytest.raises(EngineDeadError, match=r"failed \(first\), and the probe after it: second"):
        engine.engine.dummy_step(min_decode_rows=1)
    alone = EqualityEngine(load_toy("mamba", "reference"), num_slots=1)
    alone.submit("x", PROMPT, seed=1, max_tokens=10)
    assert engine.run()["x"] == alone.run()["x"]
