"""Embedding lookup: rows by token id, widened exactly and multiplied."""

import pytest
import torch
from kernels_cases import same_bytes

from mambad.kernels.ops import Ops


def table(num_rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 24, 257])
def test_rows_are_those_of_the_table_times_the_multiplier(ops: Ops, dtype: torch.dtype, width: int) -> None:
    rows, ids = table(11, width, dtype), torch.tensor([3, 0, 10, 3])
    assert same_bytes(ops.embed(rows, ids, 1.0), rows[ids].float())
    assert same_bytes(ops.embed(rows, ids, 0.3), rows[ids].float() * 0.3)
    assert ops.embed(rows, ids[:0], 1.0).shape == (0, width)


def test_embedding_is_a_copy(ops: Ops) -> None:
    rows = table(2, 4, torch.float32)
    before = rows.clone()
    ops.embed(rows, torch.tensor([1]), 1.0).zero_()
    assert same_bytes(rows, before)


@pytest.mark.parametrize("token_id", [-1, 11])
def test_ids_beyond_the_table_are_refused(ops: Ops, token_id: int) -> None:
    with pytest.raises((ValueError, IndexError)):
        ops.embed(table(11, 4, torch.float32), torch.tensor([0, token_id]), 1.0)
