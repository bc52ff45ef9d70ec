"""Uniform random numbers that depend on a key alone: no generator, no state, no order of drawing.

A draw is keyed by (seed, prompt index, choice index, position) and is the same whatever else a step
holds. The key's four integers go through the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable
pseudorandom number generators, OOPSLA 2014) one after the other. Changing anything here changes the
text of every seeded request. No torch.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mambad.engine.batch import SampleSpec

_WORD = 0xFFFF_FFFF_FFFF_FFFF
_INCREMENT = np.uint64(0x9E37_79B9_7F4A_7C15)
_FIRST_MULTIPLIER = np.uint64(0xBF58_476D_1CE4_E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D0_49BB_1331_11EB)


def uniform_draws(specs: Sequence[SampleSpec]) -> NDArray[np.float64]:
    """Return one number in [0, 1) for each spec: (R,) float64, multiples of 2^-53.

    Seeds count modulo 2^64, so a negative one is as good as any.
    """
    keys = [
        (spec.params.seed & _WORD, spec.params.prompt_index, spec.params.choice_index, spec.position)
        for spec in specs
    ]
    words = np.array(keys, dtype=np.uint64).reshape(len(keys), 4)
    mixed = np.zeros(len(keys), dtype=np.uint64)
    for column in range(words.shape[1]):
        mixed = _finalise((mixed ^ words[:, column]) + _INCREMENT)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _finalise(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * _FIRST_MULTIPLIER
    words = (words ^ (words >> np.uint64(27))) * _SECOND_MULTIPLIER
    return words ^ (words >> np.uint64(31))
