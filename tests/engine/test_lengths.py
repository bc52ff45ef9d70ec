"""Every prompt length from one token to two whole chunks and two tokens, and a slot's third life.

The oracle of the lengths is Transformers' one forward pass over the longest prompt, row by row; a prompt is
prefilled on the grid of its cuts, in one call and in a call for every chunk.
"""

import itertools
import random
from collections.abc import Iterator

import pytest
import torch
from toy_driver import Driver
from toy_equality import EqualityEngine, Record, load_toy, toy_ops
from toy_models import NUM_TOKENS, toy_model

from mambad.engine.cuts import chunk_ends, find_cuts

FAMILIES = ["mamba", "mamba2-groups", "granite"]
TOLERANCE = 2e-5
"""Largest difference of a logit, relative to the largest logit."""


def available(kernels: str) -> bool:
    try:
        toy_ops(kernels)
    except ValueError:
        return False
    return True


KERNELS = "cpu" if available("cpu") else "reference"


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def chunk_lengths(token_ids: list[int]) -> list[int]:
    ends = chunk_ends(find_cuts(token_ids), 0, len(token_ids))
    return [end - start for start, end in itertools.pairwise((0, *ends))]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_prompt_length_equals_transformers(family: str) -> None:
    toy, decoder = toy_model(family), load_toy(family, KERNELS)
    tokens, logits = toy.token_ids[0], toy.logits[0]
    allowed = TOLERANCE * float(logits.abs().max())
    for length in range(1, NUM_TOKENS + 1):
        lengths = chunk_lengths(tokens[:length].tolist())
        driver = Driver(decoder, num_slots=2)
        at_once = driver.run_in_pieces(tokens, [lengths])
        in_calls = driver.run_in_pieces(tokens, [[n] for n in lengths], slot=2)
        assert len(at_once) == length
        assert torch.equal(at_once, in_calls), length
        assert float((at_once[-1] - logits[length - 1]).abs().max()) <= allowed, length
        assert driver.pools.states.checksum(1) == driver.pools.states.checksum(2)
        if length < NUM_TOKENS:
            # What the prefill leaves behind is what the next token finds.
            decoded = driver.decode((1, int(tokens[length]), length))[0]
            assert float((decoded - logits[length]).abs().max()) <= allowed, length


def prompt_of(index: int, length: int) -> list[int]:
    draw = random.Random(1000 * index + length)
    return [draw.randrange(90) for _ in range(length)]


def third_of(engine: EqualityEngine, num_steps: int | None) -> Record:
    """Run three requests in turn, the second cancelled after some steps; None runs the third only."""
    if num_steps is not None:
        engine.submit("first", prompt_of(1, 70), seed=1, max_tokens=5)
        while engine.engine.has_work:
            engine.step()
        engine.submit("second", prompt_of(2, 300), seed=2, max_tokens=500)
        for _ in range(num_steps):
            engine.step()
        assert engine.engine.has_work
        engine.engine.abort("second")
    engine.submit("third", prompt_of(3, 67), seed=3, max_tokens=20)
    return engine.run()["third"]


@pytest.mark.parametrize("runs_ahead", [False, True], ids=["in-step", "ahead"])
@pytest.mark.parametrize("num_steps", [0, 1, 3, 12], ids=["queued", "first-chunk", "prefilling", "decoding"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_third_generation_after_a_cancelled_second_equals_alone(
    family: str, num_steps: int, runs_ahead: bool
) -> None:
    decoder = load_toy(family, KERNELS)
    right = third_of(EqualityEngine(decoder, num_slots=1, budget=64), None)
    engine = EqualityEngine(decoder, num_slots=1, budget=64, runs_ahead=runs_ahead)
    got = third_of(engine, num_steps)
    assert got == right
    assert len(got.tokens) == 20
    assert engine.records["second"].finish_reason == "disconnect"
    assert bool(engine.records["second"].tokens) == (num_steps == 12)
