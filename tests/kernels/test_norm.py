"""RMS norm and Mamba-2's gated norm: accuracy, groups, and equal rows."""

import kernels_oracle
import pytest
import torch
from kernels_cases import in_float64, inside_nan, relative_error, same_bytes, tolerance

from mambad.kernels.ops import Ops

EPS = 1e-5


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_channels", [1, 3, 24, 40, 257, 1536])
def test_rms_norm_agrees_with_float64(ops: Ops, num_channels: int) -> None:
    x, weight = random(5, num_channels), random(num_channels, seed=1)
    expected = kernels_oracle.rms_norm(*in_float64((x, weight)), EPS)
    assert relative_error(ops.rms_norm(x, weight, EPS), expected) < tolerance(1)


def test_rms_norm_of_zeros_is_zero(ops: Ops) -> None:
    assert (ops.rms_norm(torch.zeros(2, 24), torch.ones(24), 1e-6) == 0).all()


def test_eps_counts_for_small_rows(ops: Ops) -> None:
    x = torch.full((1, 24), 1e-4)
    assert ops.rms_norm(x, torch.ones(24), 3e-8)[0, 0].item() == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize(("num_channels", "num_groups"), [(1, 1), (3, 1), (24, 2), (40, 8), (1536, 1)])
def test_gated_norm_agrees_with_float64(ops: Ops, num_channels: int, num_groups: int) -> None:
    y, z, weight = random(5, num_channels), random(5, num_channels, seed=1), random(num_channels, seed=2)
    expected = kernels_oracle.gated_rms_norm(*in_float64((y, z, weight)), EPS, num_groups)
    assert relative_error(ops.gated_rms_norm(y, z, weight, EPS, num_groups), expected) < tolerance(1)


def test_gated_norm_gates_before_it_normalises(ops: Ops) -> None:
    y, z = torch.ones(1, 4), torch.full((1, 4), 30.0)
    assert ops.gated_rms_norm(y, z, torch.ones(4), 0.0, 1)[0].tolist() == pytest.approx([1.0] * 4)


def test_groups_are_normalised_apart(ops: Ops) -> None:
    y = torch.tensor([[1.0, 1.0, 1000.0, 1000.0]])
    z = torch.full((1, 4), 30.0)
    assert ops.gated_rms_norm(y, z, torch.ones(4), 0.0, 2)[0].tolist() == pytest.approx([1.0] * 4)


@pytest.mark.parametrize("num_channels", [3, 40, 257])
def test_rows_have_the_same_bits_alone_and_in_batches(ops: Ops, num_channels: int) -> None:
    y, z = random(33, num_channels), random(33, num_channels, seed=1)
    weight = random(num_channels, seed=2)
    normed = ops.rms_norm(y, weight, EPS)
    gated = ops.gated_rms_norm(y, z, weight, EPS, 1)
    for row in range(33):
        one = slice(row, row + 1)
        assert same_bytes(ops.rms_norm(y[one].clone(), weight, EPS), normed[one])
        assert same_bytes(ops.gated_rms_norm(y[one].clone(), z[one].clone(), weight, EPS, 1), gated[one])
    for num_rows in (2, 7, 32):
        last = slice(33 - num_rows, 33)
        assert same_bytes(ops.rms_norm(y[last].clone(), weight, EPS), normed[last])
        assert same_bytes(ops.gated_rms_norm(y[last], z[last], weight, EPS, 1), gated[last])


def test_strided_rows_between_nan_give_the_bytes_of_packed_ones(ops: Ops) -> None:
    y, z, weight = random(5, 40), random(5, 40, seed=1), random(40, seed=2)
    normed = ops.rms_norm(inside_nan(y), weight, EPS)
    gated = ops.gated_rms_norm(inside_nan(y), inside_nan(z), weight, EPS, 2)
    assert same_bytes(normed, ops.rms_norm(y, weight, EPS))
    assert same_bytes(gated, ops.gated_rms_norm(y, z, weight, EPS, 2))
    assert normed.is_contiguous()
    assert gated.is_contiguous()


@pytest.mark.parametrize("num_channels", [1, 3, 40, 257])
@pytest.mark.parametrize("multiplier", [1.0, 0.22])
def test_add_rms_norm_adds_in_two_roundings_then_normalises(
    ops: Ops, num_channels: int, multiplier: float
) -> None:
    residual, update = random(5, num_channels), random(5, num_channels, seed=1)
    weight = random(num_channels, seed=2)
    expected = residual + update * multiplier
    normed = ops.add_rms_norm(residual, update, multiplier, weight, EPS)
    assert same_bytes(residual, expected)
    assert same_bytes(normed, ops.rms_norm(expected, weight, EPS))


def test_divide_divides_in_place(ops: Ops) -> None:
    x = random(5, 37)
    expected = x / 6.0
    ops.divide(x, 6.0)
    assert same_bytes(x, expected)
