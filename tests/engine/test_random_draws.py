"""Random draws: fixed for ever, uniform, and different for every part of the key."""

import numpy as np
import pytest

from mambad.engine.batch import SampleSpec
from mambad.engine.random_draws import uniform_draws
from mambad.engine.sampling_params import SamplingParams


def keyed(seed: int, prompt_index: int, choice_index: int, position: int) -> SampleSpec:
    params = SamplingParams(seed=seed, prompt_index=prompt_index, choice_index=choice_index)
    return SampleSpec(params, position=position, num_generated=0, token_ids=(), num_prompt_tokens=0)


def splitmix(key: tuple[int, int, int, int]) -> float:
    """The same function in unbounded integers."""
    word = 2**64 - 1
    mixed = 0
    for part in key:
        z = ((mixed ^ (part & word)) + 0x9E3779B97F4A7C15) & word
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
        mixed = z ^ (z >> 31)
    return (mixed >> 11) / 2**53


GOLDEN = [0.1296456182997474, 0.9298466593714241]
KEYS = [(0, 0, 0, 0), (1, 0, 0, 0), (-1, 2, 3, 4), (2**63, 1, 0, 2**40), (2**64 - 1, 0, 127, 1)]


def test_draws_are_those_of_the_definition() -> None:
    drawn = uniform_draws([keyed(*key) for key in KEYS])
    assert drawn.dtype == np.float64
    assert drawn.tolist() == [splitmix(key) for key in KEYS]


def test_draws_never_change_between_versions() -> None:
    drawn = uniform_draws([keyed(0, 0, 0, 0), keyed(1234, 1, 2, 77)])
    assert drawn.tolist() == GOLDEN


def test_draw_of_a_key_does_not_depend_on_its_neighbours() -> None:
    specs = [keyed(*key) for key in KEYS]
    alone = [uniform_draws([spec])[0] for spec in specs]
    assert alone == uniform_draws(specs).tolist()
    assert alone[::-1] == uniform_draws(specs[::-1]).tolist()


@pytest.mark.parametrize("part", range(4))
def test_every_part_of_the_key_alone_gives_uniform_draws(part: int) -> None:
    num_draws, num_bins = 20_000, 64
    keys = np.zeros((num_draws, 4), dtype=int)
    keys[:, part] = np.arange(num_draws)
    drawn = uniform_draws([keyed(*key) for key in keys.tolist()])
    assert drawn.min() >= 0.0
    assert drawn.max() < 1.0
    counts = np.histogram(drawn, bins=num_bins, range=(0, 1))[0]
    expected = num_draws / num_bins
    # 63 degrees of freedom: above 104 in one of a thousand cases.
    assert np.square(counts - expected).sum() / expected < 104
    # Neighbouring keys are not correlated either: standard error 1 / sqrt(20,000).
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.025


def test_parts_of_the_key_do_not_stand_in_for_each_other() -> None:
    specs = [keyed(a, b, c, d) for a in range(4) for b in range(4) for c in range(4) for d in range(4)]
    assert len(set(uniform_draws(specs).tolist())) == len(specs)
