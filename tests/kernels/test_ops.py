"""Choosing an implementation, and that how many threads it has changes no bit."""

import logging
from collections.abc import Callable

import pytest
import torch
from kernels_cases import ChunkOf, StateOp, conv_op, int32, make_chunks, same_bytes, scan_op, ssd_op
from torch import Tensor

from mambad.kernels.cpu.ops import load_cpu_ops
from mambad.kernels.ops import Ops
from mambad.kernels.reference.ops import ReferenceOps
from mambad.kernels.selection import KERNELS_VARIABLE, select_ops

CPU = torch.device("cpu")
LOADER = "mambad.kernels.selection.load_cpu_ops"

Force = Callable[[str | None, Ops | str], None]


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Force:
    """Set the variable to a value, and let the C library load as given or be missing."""

    def set_choice(choice: str | None, loaded: Ops | str) -> None:
        if choice is None:
            monkeypatch.delenv(KERNELS_VARIABLE, raising=False)
        else:
            monkeypatch.setenv(KERNELS_VARIABLE, choice)
        monkeypatch.setattr(LOADER, lambda num_threads: loaded)

    return set_choice


@pytest.mark.parametrize("choice", [None, "auto", "cpu"])
def test_cpu_kernels_are_chosen_where_they_load(force: Force, choice: str | None) -> None:
    loaded = ReferenceOps("stands for the C library")
    force(choice, loaded)
    assert select_ops(CPU, 1) is loaded


def test_loader_gets_the_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, "auto")
    monkeypatch.setattr(LOADER, lambda num_threads: f"asked for {num_threads}")
    assert select_ops(CPU, 3).reason == "asked for 3"


@pytest.mark.parametrize("choice", [None, "auto"])
def test_reference_is_chosen_and_says_why_where_they_do_not(
    force: Force, caplog: pytest.LogCaptureFixture, choice: str | None
) -> None:
    force(choice, "no shared object")
    with caplog.at_level(logging.INFO, logger="mambad.kernels.selection"):
        ops = select_ops(CPU, 1)
    assert (ops.name, ops.reason) == ("reference", "no shared object")
    assert caplog.messages == ["kernels: reference (no shared object)"]


def test_reference_is_chosen_when_asked_for(force: Force) -> None:
    force("reference", ReferenceOps("must not be used"))
    ops = select_ops(CPU, 1)
    assert (ops.name, ops.reason) == ("reference", "MAMBAD_KERNELS=reference")


def test_reference_is_chosen_on_other_devices(force: Force) -> None:
    force("auto", ReferenceOps("must not be used"))
    ops = select_ops(torch.device("meta"), 1)
    assert (ops.name, ops.reason) == ("reference", "the C kernels do not run on meta")


def test_asking_for_cpu_kernels_that_do_not_load_is_an_error_with_the_reason(force: Force) -> None:
    force("cpu", "no shared object")
    with pytest.raises(ValueError, match="MAMBAD_KERNELS=cpu, but no shared object"):
        select_ops(CPU, 1)


def test_unknown_choice_is_an_error_that_names_the_allowed_ones(force: Force) -> None:
    force("fast", "no shared object")
    with pytest.raises(ValueError, match="'fast' is unknown: use auto, cpu or reference"):
        select_ops(CPU, 1)


@pytest.mark.parametrize("choice", ["reference", "cpu"])
def test_choosing_sets_torch_to_one_thread(force: Force, choice: str) -> None:
    force(choice, ReferenceOps("stands for the C library"))
    torch.set_num_threads(2)
    select_ops(CPU, 2)
    assert torch.get_num_threads() == 1


def run_state_op(ops: Ops, op: StateOp) -> list[Tensor]:
    states = op.states(5)
    output = op.prefill(
        ops, op.tokens(100), states, make_chunks(ChunkOf(64, None, 1), ChunkOf(35, 1, 1), ChunkOf(1, 2, 2))
    )
    slots = int32(3, 1, 0, 4, 5)
    return [output, op.update(ops, op.tokens(5), states, slots, slots), states[1:]]


def run_row_ops(ops: Ops) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(37, 1024, generator=generator)
    weight = torch.randn(517, 1024, generator=generator)
    outputs = [
        ops.rms_norm(x, weight[0], 1e-5),
        ops.gated_rms_norm(x, x, weight[0], 1e-5, 2),
        ops.silu_mul(x),
    ]
    for dtype in (torch.float32, torch.bfloat16):
        packed = ops.pack_linear(weight.to(dtype), None)
        outputs += [ops.linear(x, packed), ops.linear(x[:1], packed)]
    return outputs


def run_attention(ops: Ops) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(128, heads, 32, generator=generator) for heads in (8, 2, 2))
    k_cache, v_cache = torch.zeros(2, 9, 16, 2, 32).unbind()
    table = torch.tensor([[0] * 8, list(range(8, 0, -1))], dtype=torch.int32)
    positions = torch.arange(128, dtype=torch.int32)
    rows = torch.ones_like(positions)
    ops.kv_write(k, v, k_cache, v_cache, positions, table, rows)
    caches = (k_cache, v_cache, table)
    prefilled = ops.attention_prefill(q, *caches, int32(1, 1), int32(0, 64), int32(0, 64, 128), 0.2)
    return [k_cache, v_cache, prefilled, ops.attention_decode(q, *caches, rows, positions, 0.2)]


def test_number_of_threads_of_the_cpu_kernels_changes_no_bit() -> None:
    results = []
    for num_threads in (1, 2, 3):
        ops = load_cpu_ops(num_threads)
        if isinstance(ops, str):
            pytest.skip(ops)
        outputs = run_row_ops(ops) + run_attention(ops)
        for op in (conv_op(1037, 4), scan_op(1037, 16), ssd_op(6, 64, 2, 32)):
            outputs += run_state_op(ops, op)
        results.append(outputs)
    for outputs in results[1:]:
        assert all(same_bytes(a, b) for a, b in zip(outputs, results[0], strict=True))
