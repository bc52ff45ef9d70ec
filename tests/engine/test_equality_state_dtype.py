"""With a bfloat16 state a request's answer is the same bits, too, whatever happens around it.

See `test_equality.py`. A state is rounded at every cut, whether or not the next chunk is in the same step.
"""

import functools

import pytest
from test_equality import KERNELS, assert_same, prompt_of, run_staggered
from toy_equality import EqualityEngine, Record, load_toy

FAMILIES = ["mamba", "mamba2-groups", "granite"]


@functools.cache
def alone(family: str, kernels: str, index: int, length: int, max_tokens: int) -> Record:
    engine = EqualityEngine(load_toy(family, kernels), num_slots=1, budget=64, state_dtype="bfloat16")
    engine.submit("x", prompt_of(index, length), seed=index, max_tokens=max_tokens)
    return engine.run()["x"]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("budget", [64, 192, 4096])
def test_in_company_equals_alone(family: str, kernels: str, budget: int) -> None:
    asked = [(i, length, 4 + 3 * (i % 3)) for i, length in enumerate([1, 63, 64, 65, 130, 300])]
    engine = EqualityEngine(
        load_toy(family, kernels), num_slots=4, budget=budget, runs_ahead=True, state_dtype="bfloat16"
    )
    run_staggered(engine, asked)
    for index, length, max_tokens in asked:
        assert_same(engine.records[f"r{index}"], alone(family, kernels, index, length, max_tokens))


@pytest.mark.parametrize("state_cache_bytes", [0, 1 << 30], ids=["replay", "swap"])
def test_preempted_equals_undisturbed(state_cache_bytes: int) -> None:
    asked = [(200 + i, 30 + 20 * i, 60) for i in range(4)]
    engine = EqualityEngine(
        load_toy("granite", KERNELS[0]),
        num_slots=4,
        num_blocks=18,
        state_cache_bytes=state_cache_bytes,
        state_dtype="bfloat16",
    )
    run_staggered(engine, asked)
    assert engine.counters.preemptions >= 2
    for index, length, max_tokens in asked:
        assert_same(engine.records[f"r{index}"], alone("granite", KERNELS[0], index, length, max_tokens))


@pytest.mark.parametrize("family", FAMILIES)
def test_state_is_rounded_and_so_is_what_follows_from_it(family: str) -> None:
    engine = EqualityEngine(load_toy(family, KERNELS[0]), num_slots=1)
    engine.submit("x", prompt_of(4, 130), seed=4, max_tokens=7)
    exact, rounded = engine.run()["x"], alone(family, KERNELS[0], 4, 130, 7)
    assert exact.state != rounded.state
    assert exact.logits[130] != rounded.logits[130]
