"""The dispatch levels of the C kernels: all agree, and their exp, softplus and silu are accurate."""

from collections.abc import Callable

import pytest
import torch
from kernels_cases import (
    ChunkOf,
    conv_op,
    int32,
    make_chunks,
    relative_error,
    same_bytes,
    scan_op,
    ssd_op,
    tolerance,
)
from torch import Tensor

from mambad.kernels.cpu.library import LEVEL_VARIABLE
from mambad.kernels.cpu.ops import CpuOps, load_cpu_ops
from mambad.kernels.reference.ops import ReferenceOps

LEVELS = ("avx512", "avx2", "generic")
STATE_OPS = (conv_op(83, 4), scan_op(83, 16), ssd_op(4, 40, 2, 21))

Load = Callable[[str], CpuOps]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load the ops at a dispatch level, with two threads."""

    def load_level(level: str) -> CpuOps:
        monkeypatch.setenv(LEVEL_VARIABLE, level)
        ops = load_cpu_ops(2)
        if isinstance(ops, str):
            pytest.skip(ops)
        return ops

    return load_level


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def results_of_all_ops(ops: CpuOps | ReferenceOps) -> list[Tensor]:
    x, weight = random(13, 300), random(70, 300)
    results = [ops.rms_norm(x, weight[0], 1e-5), ops.gated_rms_norm(x, -x, weight[0], 1e-5, 3)]
    results += [ops.silu_mul(x)]
    results += [ops.linear(x, ops.pack_linear(w, None)) for w in (weight, weight.bfloat16())]
    for op in STATE_OPS:
        states = op.states(3)
        chunks = make_chunks(ChunkOf(64, None, 1), ChunkOf(5, 1, 1, 2))
        results += [op.prefill(ops, op.tokens(69), states, chunks)]
        results += [op.update(ops, op.tokens(2), states, int32(1, 2), int32(1, 3)), states[1:]]
    q, k_cache, v_cache = random(40, 6, 20), random(4, 16, 2, 20), random(4, 16, 2, 20)
    table = int32(0, 0, 0, 3, 1, 2).view(2, 3)
    caches = (k_cache, v_cache, table)
    results += [ops.attention_prefill(q, *caches, int32(1), int32(0), int32(0, 40), 0.2)]
    return [*results, ops.attention_decode(q[:2], *caches, int32(1, 1), int32(39, 3), 0.2)]


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_agrees_with_the_reference(load: Load, level: str) -> None:
    ops = load(level)
    assert ops.level == level
    assert ops.name == f"cpu-{level}"
    for result, expected in zip(
        results_of_all_ops(ops), results_of_all_ops(ReferenceOps("tests")), strict=True
    ):
        assert relative_error(result, expected.double()) < tolerance(64)


def test_vector_width_changes_no_bit(load: Load) -> None:
    wide, narrow = results_of_all_ops(load("avx512")), results_of_all_ops(load("avx2"))
    assert all(same_bytes(a, b) for a, b in zip(wide, narrow, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("level", LEVELS)
def test_linear_row_has_the_same_bits_among_1_to_200_rows(load: Load, level: str, dtype: torch.dtype) -> None:
    ops = load(level)
    packed = ops.pack_linear(random(37, 270).to(dtype), random(37))
    x = random(200, 270)
    whole = ops.linear(x, packed)
    for num_rows in range(1, 201):
        assert same_bytes(ops.linear(x[:num_rows], packed), whole[:num_rows]), num_rows
        assert same_bytes(ops.linear(x[-num_rows:], packed), whole[-num_rows:]), num_rows


def units_in_last_place(result: Tensor, exact: Tensor) -> float:
    expected = exact.float()
    spacing = (torch.nextafter(expected, torch.full_like(expected, torch.inf)) - expected).double()
    return float(((result.double() - exact).abs() / spacing).max())


def ssd_decay_and_step(ops: CpuOps, exponents: Tensor) -> tuple[Tensor, Tensor]:
    """Return exp(exponents) and softplus(exponents), which an update of 1x1 states computes a head each."""
    num_heads = exponents.shape[0]
    one, zeros, slot = torch.ones(1, 1, 1), torch.zeros(num_heads), int32(1)
    states = torch.ones(2, num_heads, 1, 1)
    x = torch.zeros(1, num_heads, 1)
    fixed_step = (1.0, 1.0)
    decay = ops.ssd_state_update(
        x, zeros[None], exponents, one, one, zeros, zeros, fixed_step, states, slot, slot
    )
    states.zero_()
    no_limit = (0.0, torch.inf)
    step = ops.ssd_state_update(
        x + 1, exponents[None], zeros, one, one, zeros, zeros, no_limit, states, slot, slot
    )
    return decay.flatten(), step.flatten()


@pytest.mark.parametrize("level", LEVELS)
def test_exp_softplus_and_silu_are_right_in_the_last_places(load: Load, level: str) -> None:
    ops = load(level)
    x = torch.cat([torch.linspace(-87, 88.7, 40001), torch.linspace(-1, 1, 40001)])
    exact = x.double()
    decay, step = ssd_decay_and_step(ops, x)
    silu = ops.silu_mul(torch.stack([x, torch.ones_like(x)], 1)).flatten()
    assert units_in_last_place(decay, exact.exp()) <= 1
    softplus = torch.where(exact > 20, exact, exact.exp().log1p())
    assert units_in_last_place(step, softplus) <= 2
    assert units_in_last_place(silu[x > -85], (exact / (1 + (-exact).exp()))[x > -85]) <= 3


@pytest.mark.parametrize("level", LEVELS)
def test_exp_passes_nan_on_and_is_right_at_infinity(load: Load, level: str) -> None:
    decay, step = ssd_decay_and_step(load(level), torch.tensor([torch.nan, -torch.inf, 0.0, 89.0]))
    assert decay[0].isnan()
    assert step[0].isnan()
    assert decay[1:].tolist() == [0.0, 1.0, torch.inf]
    assert step[1] == 0
