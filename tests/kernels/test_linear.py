"""The linear layer at every dispatch level: accuracy, both weight types, rows that do not know how many they
are, and embeddings out of packed weights."""

import pytest
import torch
from kernels_cases import inside_nan, relative_error, same_bytes
from kernels_levels import BFLOAT16_LEVELS, LoadLevel
from torch import Tensor

from mambad.kernels.ops import Ops

SHAPES = ((1, 1), (3, 5), (40, 24), (97, 768), (33, 257), (16, 64), (70, 300))
DTYPES = (torch.float32, torch.bfloat16)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def as_multiplied(x: Tensor, ops: Ops, dtype: torch.dtype) -> Tensor:
    """Return x as the product with weights of this dtype sees it: some levels round it to bfloat16."""
    rounds = dtype is torch.bfloat16 and getattr(ops, "level", "none") in BFLOAT16_LEVELS
    return (x.bfloat16() if rounds else x).double()


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_out", "num_in"), SHAPES)
def test_linear_agrees_with_float64(
    ops_at_level: Ops, num_out: int, num_in: int, dtype: torch.dtype, has_bias: bool
) -> None:
    weight = random(num_out, num_in).to(dtype)
    bias = random(num_out, seed=1).to(dtype) if has_bias else None
    x = random(19, num_in, seed=2)
    seen = as_multiplied(x, ops_at_level, dtype)
    expected = seen @ weight.double().t() + (0.0 if bias is None else bias.double())
    packed = ops_at_level.pack_linear(weight, bias)
    output = ops_at_level.linear(x, packed)
    # Products of bfloat16 numbers are exact in float32 and sums are float32 at every level, so what is left
    # after the inputs are rounded is a random walk of roundings of 2^-24 of the sums: sqrt(K) * 6e-8.
    assert relative_error(output, expected) < 1e-7 * max(num_in, 16) ** 0.5
    assert (packed.num_out, packed.num_in) == (num_out, num_in)
    assert packed.num_bytes >= weight.nbytes


@pytest.mark.parametrize("dtype", DTYPES)
def test_error_of_rounded_inputs_stays_within_the_precision_of_bfloat16(
    ops_at_level: Ops, dtype: torch.dtype
) -> None:
    weight, x = random(97, 768).to(dtype), random(19, 768, seed=2)
    output = ops_at_level.linear(x, ops_at_level.pack_linear(weight, None)).double()
    error = (output - x.double() @ weight.double().t()).abs()
    # bfloat16 has 8 significant bits, so rounding to nearest is off by 2^-9 of each input at most; 1e-5 of
    # the same sum is ample for the float32 sums.
    bound = x.double().abs() @ weight.double().abs().t()
    assert (error <= (2.0**-9 + 1e-5) * bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_out", "num_in"), SHAPES)
def test_row_has_the_same_bits_at_any_position_of_1_to_70_rows(
    ops_at_level: Ops, num_out: int, num_in: int, dtype: torch.dtype
) -> None:
    ops = ops_at_level
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
def test_row_has_the_same_bits_among_1_to_200_rows_on_1_to_4_threads(
    load_level: LoadLevel, level: str, dtype: torch.dtype
) -> None:
    x, weight, bias = random(200, 270, seed=2), random(301, 270).to(dtype), random(301, seed=1)
    alone = None
    for num_threads in (1, 2, 3, 4):
        ops = load_level(level, num_threads)
        packed = ops.pack_linear(weight, bias)
        if alone is None:
            alone = torch.cat([ops.linear(x[row : row + 1], packed) for row in range(200)])
        for num_rows in range(num_threads, 201, 4):
            assert same_bytes(ops.linear(x[:num_rows], packed), alone[:num_rows]), num_rows
            assert same_bytes(ops.linear(x[-num_rows:], packed), alone[-num_rows:]), num_rows
        ops.close()


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_rows_between_nan_give_the_bytes_of_packed_ones(
    ops_at_level: Ops, dtype: torch.dtype
) -> None:
    packed = ops_at_level.pack_linear(random(33, 257).to(dtype), None)
    x = random(9, 257, seed=2)
    output = ops_at_level.linear(inside_nan(x), packed)
    assert same_bytes(output, ops_at_level.linear(x, packed))
    assert output.is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_in_one_row_stays_in_that_row(ops_at_level: Ops, dtype: torch.dtype) -> None:
    packed = ops_at_level.pack_linear(random(97, 768).to(dtype), random(97, seed=1))
    x = random(20, 768, seed=2)
    clean = ops_at_level.linear(x, packed)
    x[7, 700] = torch.nan
    output = ops_at_level.linear(x, packed)
    others = torch.arange(20) != 7
    assert output[7].isnan().all()
    assert same_bytes(output[others], clean[others])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_in", [5, 64, 257])
def test_nan_and_infinity_go_where_float64_puts_them(
    ops_at_level: Ops, num_in: int, dtype: torch.dtype
) -> None:
    weight, x = random(35, num_in).to(dtype), random(4, num_in, seed=2)
    weight[3, 0], weight[33, -1], weight[20, -1] = torch.nan, torch.inf, 0.0
    x[1, -1], x[2, 0] = -torch.inf, torch.nan
    x[3, 0], x[3, 1] = torch.inf, -torch.inf
    expected = x.double() @ weight.double().t()
    output = ops_at_level.linear(x, ops_at_level.pack_linear(weight, None))
    assert torch.equal(output.isnan(), expected.isnan())
    assert torch.equal(output == torch.inf, expected == torch.inf)
    assert torch.equal(output == -torch.inf, expected == -torch.inf)


def test_packed_weight_is_a_copy(ops_at_level: Ops) -> None:
    weight, bias = random(40, 24), random(40, seed=1)
    x = random(3, 24, seed=2)
    packed = ops_at_level.pack_linear(weight, bias)
    before = ops_at_level.linear(x, packed)
    weight.zero_()
    bias.zero_()
    assert same_bytes(ops_at_level.linear(x, packed), before)


def test_weight_may_be_a_strided_view(ops_at_level: Ops) -> None:
    weight = random(24, 40).t()
    x = random(3, 24, seed=2)
    expected = ops_at_level.linear(x, ops_at_level.pack_linear(weight.contiguous(), None))
    assert same_bytes(ops_at_level.linear(x, ops_at_level.pack_linear(weight, None)), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_out", "num_in"), SHAPES)
def test_embeddings_out_of_packed_weights_are_the_weights(
    ops_at_level: Ops, num_out: int, num_in: int, dtype: torch.dtype
) -> None:
    weight = random(num_out, num_in).to(dtype)
    packed = ops_at_level.pack_linear(weight, None)
    token_ids = torch.cat([torch.arange(num_out), torch.tensor([num_out - 1, 0])])
    assert same_bytes(ops_at_level.embed(packed, token_ids, 1.0), weight.float()[token_ids])
    assert same_bytes(ops_at_level.embed(packed, token_ids, 0.3), weight.float()[token_ids] * 0.3)
    for token in (-1, num_out):
        with pytest.raises(ValueError, match="token id"):
            ops_at_level.embed(packed, torch.tensor([0, token]), 1.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_rows_give_no_rows(load_level: LoadLevel, level: str, dtype: torch.dtype) -> None:
    ops = load_level(level, 1)
    packed = ops.pack_linear(random(5, 3).to(dtype), None)
    assert ops.linear(torch.empty(0, 3), packed).shape == (0, 5)
    assert ops.embed(packed, torch.empty(0, dtype=torch.int64), 1.0).shape == (0, 3)
    ops.close()
