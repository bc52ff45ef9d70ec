"""What neighbours, spans, running ahead, slot reuse, swapping and padding can't change, byte by byte."""

import functools
from collections.abc import Iterator

import pytest
import torch
from toy_runner import (
    BLOCKS_A_SLOT,
    NUM_SLOTS,
    Client,
    Undisturbed,
    assert_equal,
    digests,
    run_alone,
    toy_decoder,
    toy_rig,
)

from mambad.engine.batch import TOKEN_OF_LAUNCHED_STEP, Batch
from mambad.engine.eager_runner import EagerRunner, EagerStepHandle
from mambad.engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, num_logprobs=2)
DRAWN = SamplingParams(temperature=1.5, top_p=0.95, seed=5, num_logprobs=1)
WHOLE = SamplingParams(seed=6, choice_index=1, num_logprobs=0, num_prompt_logprobs=2)


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def prompt(length: int, first: int) -> list[int]:
    return [(first + i * i) % 61 for i in range(length)]


@functools.cache
def alone(slot: int, length: int, params: SamplingParams, num_tokens: int) -> Undisturbed:
    return run_alone(slot, prompt(length, slot), params, num_tokens)


def test_staggered_requests_run_ahead_equal_each_alone() -> None:
    """Long prefill in three steps, rows that change places, a batch that grows, shrinks and pads."""
    a = Client(1, prompt(130, 1), GREEDY)
    b = Client(3, prompt(20, 3), DRAWN)
    c = Client(2, prompt(70, 2), WHOLE)
    table = tuple(client.table_update for client in (a, b, c))
    plan: list[tuple[list[tuple[Client, int]], list[Client]]] = [
        ([(a, 64)], []),
        ([(b, 20), (a, 128)], []),
        ([(a, 130)], [b]),
        ([(c, 64)], [a, b]),
        ([(c, 70)], [b, a]),
        ([], [c, a, b]),
        ([], [b, c]),
        ([], [c]),
    ]
    with toy_rig() as rig:
        launched: list[tuple[EagerStepHandle, list[Client]]] = []
        num_ahead = 0
        for step_id, (spans, rows) in enumerate(plan, 1):
            batch = Batch(
                step_id,
                prefills=tuple(client.span(end) for client, end in spans),
                decodes=tuple(client.row() for client in rows),
                table_updates=table if step_id == 1 else (),
            )
            num_ahead += sum(row.token_id == TOKEN_OF_LAUNCHED_STEP for row in batch.decodes)
            launched.append((rig.runner.launch(batch), [client for client, _ in spans] + rows))
            if len(launched) == 2:
                take_all(launched.pop(0))
        take_all(launched.pop())
        assert num_ahead == 11
        for client, num_tokens in ((a, 4), (b, 6), (c, 4)):
            expected = alone(client.slot, len(client.prompt), client.params, num_tokens)
            assert len(client.output) == num_tokens
            assert_equal(client, expected)
            assert digests(rig.runner, client) == expected.digests


def take_all(launched: tuple[EagerStepHandle, list[Client]]) -> None:
    handle, clients = launched
    for client, row in zip(clients, handle.result().rows, strict=True):
        client.take(row)


@pytest.mark.parametrize("ends", [(64, 130), (64, 128, 130), (128, 130)])
def test_prompt_in_spans_equals_the_prompt_in_one(ends: tuple[int, ...]) -> None:
    client = Client(1, prompt(130, 1), WHOLE)
    with toy_rig() as rig:
        for step_id, end in enumerate(ends, 1):
            batch = Batch(step_id, prefills=(client.span(end),), table_updates=(client.table_update,))
            client.take(rig.runner.launch(batch).result().rows[0])
        expected = alone(1, 130, WHOLE, 1)
        assert len(client.prompt_logprobs) == 129
        assert_equal(client, expected)
        assert digests(rig.runner, client) == expected.digests


def test_slot_and_blocks_used_before_give_what_fresh_ones_give() -> None:
    expected = alone(2, 20, DRAWN, 3)
    with toy_rig() as rig:
        first, second = Client(2, prompt(100, 50), GREEDY), Client(2, prompt(20, 2), DRAWN)
        step_id = 0
        for client, num_rows in ((first, 4), (second, 2)):
            step_id += 1
            batch = Batch(step_id, prefills=(client.span(),), table_updates=(client.table_update,))
            client.take(rig.runner.launch(batch).result().rows[0])
            for _ in range(num_rows):
                step_id += 1
                batch = Batch(step_id, decodes=(client.row(),))
                client.take(rig.runner.launch(batch).result().rows[0])
            rig.runner.clear_row(client.slot)
        assert_equal(second, expected)


def test_swapped_request_goes_on_in_another_slot_and_other_blocks() -> None:
    expected = alone(1, 70, DRAWN, 6)
    client = Client(1, prompt(70, 1), DRAWN)
    with toy_rig() as rig:
        batch = Batch(1, prefills=(client.span(),), table_updates=(client.table_update,))
        client.take(rig.runner.launch(batch).result().rows[0])
        for step_id in (2, 3):
            client.take(rig.runner.launch(Batch(step_id, decodes=(client.row(),))).result().rows[0])
        held = client.block_ids[: -(-client.num_launched // 16)]
        swapped = rig.runner.swap_out(1, held)
        spec = toy_decoder().spec
        assert swapped.num_bytes == spec.slot_bytes() + len(held) * spec.block_bytes(16)
        rig.runner.clear_row(1)
        rig.runner.poison([1], held)
        client.slot = 4
        rig.runner.swap_in(swapped, 4, client.block_ids[: len(held)])
        for step_id in (4, 5, 6):
            batch = Batch(step_id, decodes=(client.row(),), table_updates=(client.table_update,))
            client.take(rig.runner.launch(batch).result().rows[0])
        assert_equal(client, expected)
        assert digests(rig.runner, client) == expected.digests


def test_dummy_steps_and_padding_leave_every_slot_and_block_as_it_was() -> None:
    """Three decode rows are padded to four while a fourth request is parked."""
    clients = [Client(slot, prompt(20, slot), GREEDY) for slot in (1, 2, 3, 4)]
    with toy_rig() as rig:
        updates = tuple(client.table_update for client in clients)
        spans = tuple(client.span() for client in clients)
        for client, row in zip(
            clients, rig.runner.launch(Batch(1, spans, table_updates=updates)).result().rows, strict=True
        ):
            client.take(row)
        before = checksums(rig.runner)
        result = rig.runner.launch(Batch(2, is_dummy=True)).result()
        assert (result.rows, result.num_padding_rows, result.graph_rows) == ((), 1, 1)
        assert checksums(rig.runner) == before
        rows = tuple(client.row() for client in clients[:3])
        result = rig.runner.launch(Batch(3, decodes=rows)).result()
        assert (len(result.rows), result.num_padding_rows, result.graph_rows) == (3, 1, 4)
        after = checksums(rig.runner)
        changed = {key for key in before if before[key] != after[key]}
        # Token 20 of each request stands in its second block.
        assert changed == {f"slot {c.slot}" for c in clients[:3]} | {
            f"block {c.block_ids[1]}" for c in clients[:3]
        }


def checksums(runner: EagerRunner) -> dict[str, bytes]:
    slots = {f"slot {slot}": runner.checksum(slot) for slot in range(NUM_SLOTS + 1)}
    return slots | {
        f"block {block_id}": runner.block_checksum(block_id)
        for block_id in range(NUM_SLOTS * BLOCKS_A_SLOT + 1)
    }
