"""The CPU runner: order of steps, their isolation from each other, failures, scrubbing, the end."""

import functools
import threading
from collections.abc import Iterator

import pytest
import torch
from toy_runner import Client, Gate, Undisturbed, assert_equal, run_alone, toy_rig

from mambad.engine.batch import Batch, StepResult, TableUpdate
from mambad.engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, num_logprobs=2)


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def prompt(length: int, first: int) -> list[int]:
    return [(first + i * i) % 61 for i in range(length)]


@functools.cache
def alone(slot: int, length: int, num_tokens: int) -> Undisturbed:
    return run_alone(slot, prompt(length, slot), GREEDY, num_tokens)


# ---- launched is not completed -----------------------------------------------------------------------


def test_launched_step_completes_when_it_has_run_and_not_before() -> None:
    gate = Gate()
    gate.close(1)
    client = Client(1, prompt(5, 1), GREEDY)
    with toy_rig(gate) as rig:
        handle = rig.runner.launch(Batch(1, (client.span(),), table_updates=(client.table_update,)))
        gate.wait_for(1)
        assert not handle.is_done()
        assert not handle.wait(0.01)
        assert rig.runner.num_completed == 0
        gate.open(1)
        result = handle.result()
        assert handle.is_done()
        assert handle.wait(0)
        assert (handle.step_id, result.step_id, rig.runner.num_completed) == (1, 1, 1)
        assert result.duration_s > 0
        assert (result.num_padding_rows, result.graph_rows) == (0, 0)


def test_completed_count_is_ahead_of_the_handle() -> None:
    with toy_rig() as rig:
        for step_id in range(3, 60, 3):
            handle = rig.runner.launch(Batch(step_id, is_dummy=True))
            handle.wait()
            assert rig.runner.num_completed == step_id


def test_table_update_of_the_next_step_does_not_reach_the_step_that_executes() -> None:
    expected = alone(1, 40, 2)
    gate = Gate()
    gate.close(2)
    client = Client(1, prompt(40, 1), GREEDY)
    with toy_rig(gate) as rig:
        batch = Batch(1, (client.span(),), table_updates=(client.table_update,))
        client.take(rig.runner.launch(batch).result().rows[0])
        executing = rig.runner.launch(Batch(2, decodes=(client.row(),)))
        gate.wait_for(2)
        rig.runner.clear_row(1)
        other = Client(2, prompt(3, 2), GREEDY)
        rewritten = (TableUpdate(1, 0, (31, 32, 33)), other.table_update)
        rig.runner.launch(Batch(3, (other.span(),), table_updates=rewritten))
        assert rig.table.rows[1].tolist() == list(client.block_ids)
        gate.open(2)
        client.take(executing.result().rows[0])
        assert_equal(client, expected)


def test_cleared_row_is_null_on_the_device_with_the_next_step() -> None:
    client = Client(1, prompt(5, 1), GREEDY)
    with toy_rig() as rig:
        rig.runner.launch(Batch(1, (client.span(),), table_updates=(client.table_update,))).wait()
        assert rig.table.rows[1].all()
        rig.runner.clear_row(1)
        rig.runner.launch(Batch(2, is_dummy=True)).wait()
        assert not rig.table.rows.any()


def test_third_launch_waits_until_the_buffers_of_the_first_are_free() -> None:
    gate = Gate()
    gate.close(1)
    with toy_rig(gate) as rig:
        handles = [rig.runner.launch(Batch(step_id, is_dummy=True)) for step_id in (1, 2)]
        launcher = threading.Thread(target=lambda: handles.append(rig.runner.launch(Batch(3, is_dummy=True))))
        launcher.start()
        launcher.join(0.05)
        assert launcher.is_alive()
        gate.open(1)
        launcher.join(10)
        assert [handle.result().step_id for handle in handles] == [1, 2, 3]


def test_checksums_are_of_the_memory_after_all_launched_steps() -> None:
    gate = Gate()
    gate.close(1)
    client = Client(2, prompt(16, 2), GREEDY)
    with toy_rig(gate) as rig:
        before = rig.states.checksum(2), rig.kv.checksum(client.block_ids[0])
        rig.runner.launch(Batch(1, (client.span(),), table_updates=(client.table_update,)))
        gate.wait_for(1)
        found: list[bytes] = []
        readers = [
            threading.Thread(target=lambda: found.append(rig.runner.checksum(2))),
            threading.Thread(target=lambda: found.append(rig.runner.block_checksum(client.block_ids[0]))),
        ]
        for reader in readers:
            reader.start()
            reader.join(0.02)
            assert reader.is_alive()
        gate.open(1)
        for reader in readers:
            reader.join(10)
        assert len(found) == 2
        rig.runner.close()
        assert not set(before) & {rig.states.checksum(2), rig.kv.checksum(client.block_ids[0])}
        assert not set(before) & set(found)


# ---- scrubbing ---------------------------------------------------------------------------------------


def test_scrub_zeroes_one_slot_at_once_when_nothing_is_launched() -> None:
    with toy_rig() as rig:
        rig.runner.launch(Batch(1, is_dummy=True)).wait()
        others = [rig.runner.checksum(slot) for slot in (0, 1, 3, 4)]
        rig.runner.scrub(2)
        assert all(not tensor.any() for tensor in rig.states.export(2))
        assert [rig.runner.checksum(slot) for slot in (0, 1, 3, 4)] == others


def test_scrub_does_not_wait_for_steps_that_use_other_slots() -> None:
    gate = Gate()
    gate.close(1)
    client = Client(1, prompt(5, 2), GREEDY)
    with toy_rig(gate) as rig:
        rig.runner.launch(Batch(1, (client.span(),), table_updates=(client.table_update,)))
        gate.wait_for(1)
        rig.runner.scrub(2)
        assert all(not tensor.any() for tensor in rig.states.export(2))
        gate.open(1)


# ---- failures ----------------------------------------------------------------------------------------


def test_failed_step_raises_from_its_handle_and_later_steps_run() -> None:
    gate = Gate()
    gate.failing = {2}
    expected = alone(1, 5, 2)
    client, broken = Client(1, prompt(5, 1), GREEDY), Client(2, prompt(5, 2), GREEDY)
    with toy_rig(gate) as rig:
        batch = Batch(1, (client.span(),), table_updates=(client.table_update,))
        client.take(rig.runner.launch(batch).result().rows[0])
        failed = rig.runner.launch(Batch(2, (broken.span(),)))
        later = rig.runner.launch(Batch(3, decodes=(client.row(),)))
        for _ in range(2):
            with pytest.raises(RuntimeError, match="step 2 was made to fail"):
                failed.result()
        client.take(later.result().rows[0])
        assert_equal(client, expected)
        assert rig.runner.num_completed == 3


def test_table_rows_of_a_failed_step_reach_the_steps_after_it() -> None:
    gate = Gate()
    gate.failing = {1}
    expected = alone(1, 5, 1)
    client = Client(1, prompt(5, 1), GREEDY)
    with toy_rig(gate) as rig:
        failed = rig.runner.launch(Batch(1, is_dummy=True, table_updates=(client.table_update,)))
        with pytest.raises(RuntimeError):
            failed.result()
        client.take(rig.runner.launch(Batch(2, (client.span(),))).result().rows[0])
        assert_equal(client, expected)


# ---- the end -----------------------------------------------------------------------------------------


def test_close_finishes_the_launched_steps_and_a_second_close_does_nothing() -> None:
    gate = Gate()
    gate.close(1)
    with toy_rig(gate) as rig:
        handle = rig.runner.launch(Batch(1, is_dummy=True))
        gate.wait_for(1)
        closer = threading.Thread(target=rig.runner.close)
        closer.start()
        closer.join(0.05)
        assert closer.is_alive()
        gate.open(1)
        closer.join(10)
        assert isinstance(handle.result(), StepResult)
        assert not any(thread.name == "mambad-runner" for thread in threading.enumerate())
        with pytest.raises(AssertionError, match="closed"):
            rig.runner.launch(Batch(2, is_dummy=True))
        rig.runner.close()


def test_step_ids_have_to_ascend() -> None:
    with toy_rig() as rig:
        rig.runner.launch(Batch(2, is_dummy=True))
        with pytest.raises(AssertionError, match="ascend"):
            rig.runner.launch(Batch(2, is_dummy=True))
