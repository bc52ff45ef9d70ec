"""The gated product of an MLP: accuracy, extremes, equal rows."""

import kernels_oracle
import pytest
import torch
from kernels_cases import inside_nan, relative_error, same_bytes, tolerance

from mambad.kernels.ops import Ops
from mambad.kernels.reference.activation import silu, softplus


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 3


@pytest.mark.parametrize("size", [1, 3, 24, 257])
def test_silu_mul_agrees_with_float64(ops: Ops, size: int) -> None:
    gate_up = random(5, 2 * size)
    gate, up = gate_up.double().chunk(2, dim=1)
    assert relative_error(ops.silu_mul(gate_up), kernels_oracle.silu(gate) * up) < tolerance(1)


def test_silu_of_extreme_gates_saturates_without_nan(ops: Ops) -> None:
    gate = torch.tensor([-3e38, -1e4, -100.0, -87.4, -17.0, 0.0, 17.0, 88.5, 1e4, 3e38])
    output = ops.silu_mul(torch.cat((gate, torch.ones(10)))[None])[0]
    expected = kernels_oracle.silu(gate.double())
    assert output.tolist() == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-30)


@pytest.mark.parametrize("size", [3, 24, 257])
def test_rows_have_the_same_bits_alone_and_in_batches(ops: Ops, size: int) -> None:
    gate_up = random(33, 2 * size)
    output = ops.silu_mul(gate_up)
    for row in range(33):
        assert same_bytes(ops.silu_mul(gate_up[row : row + 1].clone()), output[row : row + 1])
    for num_rows in (2, 7, 32):
        assert same_bytes(ops.silu_mul(gate_up[-num_rows:].clone()), output[-num_rows:])


def test_strided_rows_between_nan_give_the_bytes_of_packed_ones(ops: Ops) -> None:
    gate_up = random(5, 50)
    output = ops.silu_mul(inside_nan(gate_up))
    assert same_bytes(output, ops.silu_mul(gate_up))
    assert output.is_contiguous()


def test_functions_of_the_reference_do_not_depend_on_where_torch_cuts_a_tensor() -> None:
    x = random(64, 1537)
    torch.set_num_threads(1)
    expected = silu(x), softplus(x)
    for num_threads in (2, 3, 4):
        torch.set_num_threads(num_threads)
        assert same_bytes(silu(x), expected[0])
        assert same_bytes(softplus(x), expected[1])
