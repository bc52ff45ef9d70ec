"""The dispatch levels of the C kernels: all agree, and their exp, softplus and silu are accurate."""

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
from kernels_levels import LoadLevel
from torch import Tensor

from mambad.kernels.cpu.build import LEVELS
from mambad.kernels.cpu.ops import CpuOps
from mambad.kernels.reference.ops import ReferenceOps

STATE_OPS = (conv_op(83, 4), scan_op(83, 16), ssd_op(4, 40, 2, 21))


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def results_of_all_ops(ops: CpuOps | ReferenceOps) -> list[Tensor]:
    x, weight = random(13, 300), random(70, 300)
    results = [ops.rms_norm(x, weight[0], 1e-5), ops.gated_rms_norm(x, -x, weight[0], 1e-5, 3)]
    results += [ops.silu_mul(x)]
    exact = x.bfloat16().float()  # some levels round the inputs of bfloat16 products to it
    results += [ops.linear(exact, ops.pack_linear(w, None)) for w in (weight, weight.bfloat16())]
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


def test_every_level_agrees_with_the_reference(load_level: LoadLevel, level: str) -> None:
    ops = load_level(level, 2)
    assert ops.level == level.removesuffix("-emulated")
    assert ops.name == f"cpu-{ops.level}"
    for result, expected in zip(
        results_of_all_ops(ops), results_of_all_ops(ReferenceOps("tests")), strict=True
    ):
        assert relative_error(result, expected.double()) < tolerance(64)


def test_vector_width_changes_no_bit(load_level: LoadLevel) -> None:
    wide, narrow = (results_of_all_ops(load_level(level, 2)) for level in ("avx512", "avx2"))
    assert all(same_bytes(a, b) for a, b in zip(wide, narrow, strict=True))


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
def test_exp_softplus_and_silu_are_right_in_the_last_places(load_level: LoadLevel, level: str) -> None:
    ops = load_level(level, 2)
    x = torch.cat([torch.linspace(-87, 88.7, 40001), torch.linspace(-1, 1, 40001)])
    exact = x.double()
    decay, step = ssd_decay_and_step(ops, x)
    silu = ops.silu_mul(torch.stack([x, torch.ones_like(x)], 1)).flatten()
    assert units_in_last_place(decay, exact.exp()) <= 1
    softplus = torch.where(exact > 20, exact, exact.exp().log1p())
    assert units_in_last_place(step, softplus) <= 2
    assert units_in_last_place(silu[x > -85], (exact / (1 + (-exact).exp()))[x > -85]) <= 3


@pytest.mark.parametrize("level", LEVELS)
def test_exp_passes_nan_on_and_is_right_at_infinity(load_level: LoadLevel, level: str) -> None:
    ops = load_level(level, 2)
    decay, step = ssd_decay_and_step(ops, torch.tensor([torch.nan, -torch.inf, 0.0, 89.0]))
    assert decay[0].isnan()
    assert step[0].isnan()
    assert decay[1:].tolist() == [0.0, 1.0, torch.inf]
    assert step[1] == 0
