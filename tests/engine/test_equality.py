"""A request's answer is the same bits whatever happens around it (design: what equality we promise).

Compared are the bytes of the logits behind every token, the log-probabilities, the final states and the
final keys and values: of requests alone in the engine against the same in company that arrives staggered,
with unequal lengths, under several token budgets, run ahead or not, preempted by swap and by replay, with
a batch of up to 32 that shrinks to nothing.
"""

import functools
import random

import pytest
from toy_equality import EqualityEngine, Record, load_toy, toy_ops

FAMILIES = ["mamba", "mamba2-groups", "granite"]
LENGTHS = [1, 3, 63, 64, 65, 127, 130, 190, 257, 300]


def available(kernels: str) -> list[str]:
    try:
        toy_ops(kernels)
    except ValueError:
        return []
    return [kernels]


KERNELS = [*available("cpu"), "reference"]


def prompt_of(index: int, length: int) -> list[int]:
    draw = random.Random(1000 * index + length)
    return [draw.randrange(90) for _ in range(length)]


@functools.cache
def alone(family: str, kernels: str, index: int, length: int, max_tokens: int, threads: int = 1) -> Record:
    engine = EqualityEngine(load_toy(family, kernels, threads), num_slots=1, budget=64)
    engine.submit("x", prompt_of(index, length), seed=index, max_tokens=max_tokens)
    return engine.run()["x"]


def assert_same(got: Record, right: Record) -> None:
    assert got.tokens == right.tokens
    assert got.logprobs == right.logprobs
    assert got.logits == right.logits
    assert len(right.logits) == len(right.tokens) > 0
    assert got.state == right.state
    assert got.keys_and_values == right.keys_and_values
    assert got.finish_reason == right.finish_reason == "length"


def run_staggered(engine: EqualityEngine, asked: list[tuple[int, int, int]]) -> dict[str, Record]:
    draw = random.Random(7)
    arrivals = []
    for index, length, max_tokens in asked:
        submit = functools.partial(
            engine.submit, f"r{index}", prompt_of(index, length), seed=index, max_tokens=max_tokens
        )
        arrivals.append((draw.randrange(12), submit))
    return engine.run(arrivals)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("budget", [64, 200, 4096])
@pytest.mark.parametrize("runs_ahead", [False, True], ids=["in-step", "ahead"])
def test_in_company_equals_alone(family: str, kernels: str, budget: int, runs_ahead: bool) -> None:
    asked = [(i, length, 3 + 2 * (i % 4)) for i, length in enumerate(LENGTHS)]
    engine = EqualityEngine(load_toy(family, kernels), num_slots=6, budget=budget, runs_ahead=runs_ahead)
    run_staggered(engine, asked)
    for index, length, max_tokens in asked:
        assert_same(engine.records[f"r{index}"], alone(family, kernels, index, length, max_tokens))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_of_2000_tokens_equals_alone(family: str, kernels: str) -> None:
    asked = [(50, 2100, 4), (51, 70, 30), (52, 5, 40)]
    engine = EqualityEngine(load_toy(family, kernels), num_slots=3, budget=192, runs_ahead=True)
    run_staggered(engine, asked)
    for index, length, max_tokens in asked:
        assert_same(engine.records[f"r{index}"], alone(family, kernels, index, length, max_tokens))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_of_32_that_shrinks_equals_alone(family: str) -> None:
    kernels = KERNELS[0]
    asked = [(100 + i, 1 + 5 * (i % 7), 2 + i) for i in range(32)]
    engine = EqualityEngine(load_toy(family, kernels), num_slots=32, runs_ahead=True)
    run_staggered(engine, asked)
    for index, length, max_tokens in asked:
        assert_same(engine.records[f"r{index}"], alone(family, kernels, index, length, max_tokens))


@pytest.mark.parametrize("runs_ahead", [False, True], ids=["in-step", "ahead"])
@pytest.mark.parametrize("state_cache_bytes", [0, 1 << 30], ids=["replay", "swap"])
@pytest.mark.parametrize("kernels", KERNELS)
def test_preempted_equals_undisturbed(kernels: str, state_cache_bytes: int, runs_ahead: bool) -> None:
    asked = [(200 + i, 30 + 20 * i, 60) for i in range(4)]
    engine = EqualityEngine(
        load_toy("granite", kernels),
        num_slots=4,
        num_blocks=18,
        runs_ahead=runs_ahead,
        state_cache_bytes=state_cache_bytes,
    )
    run_staggered(engine, asked)
    assert engine.counters.preemptions >= 2
    for index, length, max_tokens in asked:
        assert_same(engine.records[f"r{index}"], alone("granite", kernels, index, length, max_tokens))


@pytest.mark.skipif("cpu" not in KERNELS, reason="the C kernels are not built")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_number_of_threads_changes_nothing(family: str) -> None:
    asked = [(300 + i, 40 + 90 * i, 8) for i in range(3)]
    engine = EqualityEngine(load_toy(family, "cpu", 3), num_slots=3)
    run_staggered(engine, asked)
    for index, length, max_tokens in asked:
        assert_same(engine.records[f"r{index}"], alone(family, "cpu", index, length, max_tokens))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reused_slot_equals_a_fresh_one(family: str) -> None:
    kernels = KERNELS[0]
    engine = EqualityEngine(load_toy(family, kernels), num_slots=1)
    asked = [(400, 150, 20), (401, 2, 5), (402, 70, 5)]
    run_staggered(engine, asked)
    for index, length, max_tokens in asked:
        assert_same(engine.records[f"r{index}"], alone(family, kernels, index, length, max_tokens))


@pytest.mark.parametrize("state_cache_bytes", [0, 1 << 30], ids=["replay", "swap"])
def test_prompt_logprobs_are_the_same_bits_under_every_budget_and_preemption(state_cache_bytes: int) -> None:
    def run(budget: int, num_blocks: int) -> tuple[EqualityEngine, dict[str, list[object]]]:
        engine = EqualityEngine(
            load_toy("granite", KERNELS[0]),
            num_slots=3,
            num_blocks=num_blocks,
            budget=budget,
            state_cache_bytes=state_cache_bytes,
        )
        entries: dict[str, list[object]] = {}
        for i in range(3):
            engine.submit(f"r{i}", prompt_of(500 + i, 150), seed=i, max_tokens=40, num_prompt_logprobs=2)
        while engine.engine.has_work:
            for output in engine.step():
                entries.setdefault(output.request_id, []).extend(output.prompt_logprobs)
        engine.runner.close()
        return engine, entries

    engine, got = run(64, 31)
    assert engine.counters.preemptions > 0
    assert got == run(4096, 600)[1]
    for i in range(3):
        assert [e.token_id for e in got[f"r{i}"]] == prompt_of(500 + i, 150)  # type: ignore[attr-defined]
        assert got[f"r{i}"][0].logprob is None  # type: ignore[attr-defined]
