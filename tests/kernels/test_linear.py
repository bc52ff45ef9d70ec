"""The linear layer: accuracy, both weight types, and rows that do not know how many they are."""

import pytest
import torch
from kernels_cases import inside_nan, relative_error, same_bytes

from mambad.kernels.ops import Ops

SHAPES = ((1, 1), (3, 5), (40, 24), (97, 768), (33, 257), (16, 64))
DTYPES = (torch.float32, torch.bfloat16)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_out", "num_in"), SHAPES)
def test_linear_agrees_with_float64(
    ops: Ops, num_out: int, num_in: int, dtype: torch.dtype, has_bias: bool
) -> None:
    weight = random(num_out, num_in).to(dtype)
    bias = random(num_out, seed=1).to(dtype) if has_bias else None
    x = random(19, num_in, seed=2)
    expected = x.double() @ weight.double().t() + (0.0 if bias is None else bias.double())
    packed = ops.pack_linear(weight, bias)
    output = ops.linear(x, packed)
    assert relative_error(output, expected) < 1e-7 * max(num_in, 16) ** 0.5
    assert (packed.num_out, packed.num_in) == (num_out, num_in)
    assert packed.num_bytes >= weight.nbytes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_out", "num_in"), SHAPES)
def test_row_has_the_same_bits_at_any_position_of_1_to_70_rows(
    ops: Ops, num_out: int, num_in: int, dtype: torch.dtype
) -> None:
    packed = ops.pack_linear(random(num_out, num_in).to(dtype), random(num_out, seed=1))
    x = random(70, num_in, seed=2)
    alone = torch.cat([ops.linear(x[row : row + 1].clone(), packed) for row in range(70)])
    for num_rows in range(1, 71):
        first = (70 - num_rows) * (num_rows % 3) // 2
        rows = slice(first, first + num_rows)
        assert same_bytes(ops.linear(x[rows].clone(), packed), alone[rows]), num_rows
    turned = x.roll(11, 0)
    assert same_bytes(ops.linear(turned, packed), alone.roll(11, 0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_rows_between_nan_give_the_bytes_of_packed_ones(ops: Ops, dtype: torch.dtype) -> None:
    packed = ops.pack_linear(random(33, 257).to(dtype), None)
    x = random(9, 257, seed=2)
    output = ops.linear(inside_nan(x), packed)
    assert same_bytes(output, ops.linear(x, packed))
    assert output.is_contiguous()


def test_nan_in_one_row_stays_in_that_row(ops: Ops) -> None:
    packed = ops.pack_linear(random(97, 768), random(97, seed=1))
    x = random(20, 768, seed=2)
    clean = ops.linear(x, packed)
    x[7] = torch.nan
    output = ops.linear(x, packed)
    others = torch.arange(20) != 7
    assert output[7].isnan().all()
    assert same_bytes(output[others], clean[others])


def test_packed_weight_is_a_copy(ops: Ops) -> None:
    weight, bias = random(40, 24), random(40, seed=1)
    x = random(3, 24, seed=2)
    packed = ops.pack_linear(weight, bias)
    before = ops.linear(x, packed)
    weight.zero_()
    bias.zero_()
    assert same_bytes(ops.linear(x, packed), before)


def test_weight_may_be_a_strided_view(ops: Ops) -> None:
    weight = random(24, 40).t()
    x = random(3, 24, seed=2)
    expected = ops.linear(x, ops.pack_linear(weight.contiguous(), None))
    assert same_bytes(ops.linear(x, ops.pack_linear(weight, None)), expected)
