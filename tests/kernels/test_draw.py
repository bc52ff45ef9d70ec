"""Draws from rows of logits: filters, order, threads. The sampler's tests cover what requests make of it."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from mambad.kernels.cpu.ops import load_cpu_ops
from mambad.kernels.draws import DrawParams
from mambad.kernels.ops import Ops

NUM_ROWS = 60


def random_logits(num_rows: int, num_tokens: int, scale: float) -> Tensor:
    return torch.randn(num_rows, num_tokens, generator=torch.Generator().manual_seed(num_tokens)) * scale


def params(
    num_rows: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> DrawParams:
    return DrawParams(
        temperatures=np.full(num_rows, temperature, dtype=np.float32),
        top_k=np.full(num_rows, top_k, dtype=np.int64),
        top_p=np.full(num_rows, top_p, dtype=np.float64),
        min_p=np.full(num_rows, min_p, dtype=np.float32),
        uniforms=np.arange(1, num_rows + 1) * 0.6180339887498949 % 1,
    )


def oracle(logits: Tensor, wanted: DrawParams) -> list[int]:
    """Draw from each row in float64 by sorting all of it."""
    return [_oracle_row(row, wanted, place) for place, row in enumerate(logits.double().numpy())]


def _oracle_row(logits: NDArray[np.float64], wanted: DrawParams, place: int) -> int:
    weights = np.exp((logits - logits.max()) / float(wanted.temperatures[place]))
    order, top_k, top_p = (
        np.lexsort((np.arange(len(logits)), -weights)),
        wanted.top_k[place],
        wanted.top_p[place],
    )
    kept = order[: top_k or None]
    sums = np.cumsum(weights[kept])
    num_kept = min(len(kept), 1 + int((sums < top_p * sums[-1]).sum())) if top_p < 1 else len(kept)
    num_kept = min(num_kept, int((weights[kept] >= float(wanted.min_p[place])).sum()))
    kept = kept[:num_kept]
    is_ranked = top_p < 1 or 0 < top_k < len(logits)
    kept = kept if is_ranked else np.sort(kept)
    sums = np.cumsum(weights[kept])
    return int(kept[np.searchsorted(sums, wanted.uniforms[place] * sums[-1], side="right")])


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"min_p": 0.05},
    {"top_k": 1},
    {"top_k": 17},
    {"top_k": 900, "temperature": 2.0},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"top_p": 0.99999},
    {"top_k": 40, "top_p": 0.8},
    {"top_p": 0.95, "min_p": 0.1},
    {"top_k": 3, "top_p": 0.9, "min_p": 0.02, "temperature": 1.7},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize(("num_tokens", "scale"), [(1, 1.0), (61, 2.0), (1000, 0.1), (5003, 4.0)])
def test_draws_are_those_of_the_sorted_row(
    ops: Ops, num_tokens: int, scale: float, filters: dict[str, Any]
) -> None:
    logits, wanted = random_logits(NUM_ROWS, num_tokens, scale), params(NUM_ROWS, **filters)
    assert ops.draw(logits, wanted).tolist() == oracle(logits, wanted)


@pytest.mark.parametrize("filters", [{"top_k": 40}, {"top_p": 0.30012}, {"top_k": 2, "top_p": 0.9}], ids=str)
def test_equal_logits_are_taken_by_id(ops: Ops, filters: dict[str, Any]) -> None:
    logits, wanted = torch.zeros(NUM_ROWS, 3000), params(NUM_ROWS, **filters)
    assert ops.draw(logits, wanted).tolist() == oracle(logits, wanted)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 17, 96])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_are_not_finite_give_no_token(ops: Ops, bad: float, place: int, temperature: float) -> None:
    logits = random_logits(3, 97, 1.0)
    logits[1, place] = bad
    drawn = ops.draw(logits, params(3, temperature=temperature))
    assert drawn[1] == -1
    assert (drawn[[0, 2]] >= 0).all()


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_threads_and_neighbours_change_nothing(filters: dict[str, Any]) -> None:
    logits, wanted = random_logits(NUM_ROWS, 5003, 2.0), params(NUM_ROWS, **filters)
    results = []
    for num_threads in (1, 3):
        loaded = load_cpu_ops(num_threads)
        if isinstance(loaded, str):
            pytest.skip(loaded)
        results.append(loaded.draw(logits, wanted).tolist())
        rows = np.arange(NUM_ROWS)[::-3]
        some = DrawParams(*(getattr(wanted, name)[rows] for name in wanted.__dataclass_fields__))
        some_logits = logits[torch.from_numpy(rows.copy())]
        assert loaded.draw(some_logits, some).tolist() == np.array(results[-1])[rows].tolist()
    assert results[0] == results[1]


def test_wrong_columns_are_refused_by_name() -> None:
    loaded = load_cpu_ops(1)
    if isinstance(loaded, str):
        pytest.skip(loaded)
    with pytest.raises(ValueError, match="temperatures is float32"):
        loaded.draw(torch.zeros(2, 8), params(3))
