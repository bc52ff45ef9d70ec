"""Order of token ids by value: total, ties to the lower id, the same for every k."""

import numpy as np
import pytest
from numpy.typing import NDArray

from mambad.kernels.ranking import rank, top_ids


def naive(values: NDArray[np.float32]) -> list[int]:
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


def values_with_ties(size: int, seed: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    return (rng.integers(-6, 7, size) / 4).astype(np.float32)


@pytest.mark.parametrize("size", [1, 2, 97, 1000])
def test_top_ids_are_a_prefix_of_the_full_order_for_every_k(size: int) -> None:
    values = values_with_ties(size, size)
    order = naive(values)
    for k in (1, 2, 3, size // 2, size - 1, size, size + 5):
        if k > 0:
            assert top_ids(values, k).tolist() == order[:k]


def test_equal_values_rank_by_id_alone() -> None:
    assert top_ids(np.full(50, -3.5, dtype=np.float32), 7).tolist() == list(range(7))


def test_signs_zeros_and_extremes_rank_as_numbers_do() -> None:
    largest = np.finfo(np.float32).max
    tiny = np.finfo(np.float32).smallest_subnormal
    values = np.array([-0.0, 0.0, -tiny, tiny, -largest, largest, -1.0, 1.0, 0.0, -0.0], dtype=np.float32)
    assert top_ids(values, 10).tolist() == [5, 7, 3, 0, 1, 8, 9, 2, 6, 4]


def test_rank_keeps_to_the_given_ids() -> None:
    values = values_with_ties(97, 5)
    ids = np.arange(3, 97, 4)
    assert rank(values, ids).tolist() == [i for i in naive(values) if i in set(ids.tolist())]


def test_values_are_not_changed() -> None:
    values = values_with_ties(97, 6)
    before = values.tobytes()
    top_ids(values, 10)
    assert values.tobytes() == before
