"""Recorded ops: the bits of the same ops called one by one, for any number of rows, in memory used again."""

import pytest
import torch
from kernels_cases import int32, same_bytes
from torch import Tensor

from mambad.kernels.cpu.ops import CpuOps, load_cpu_ops
from mambad.kernels.reference.ops import ReferenceOps

WIDTH = 40


@pytest.fixture(params=[1, 3])
def ops(request: pytest.FixtureRequest) -> CpuOps:
    loaded = load_cpu_ops(request.param)
    if isinstance(loaded, str):
        pytest.skip(loaded)
    return loaded


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def chain(ops: CpuOps, x: Tensor, weight: Tensor, length: int) -> Tensor:
    for _ in range(length):
        x = ops.rms_norm(x, weight, 1e-5)
    return x


@pytest.mark.parametrize("num_rows", [0, 1, 2, 5, 7])
def test_program_computes_what_the_ops_compute_for_fewer_rows(ops: CpuOps, num_rows: int) -> None:
    packed = ops.pack_linear(random(2 * WIDTH, WIDTH), random(2 * WIDTH, seed=1))
    weight, x = random(WIDTH, seed=2), random(7, WIDTH, seed=3)

    def function(x: Tensor) -> Tensor:
        both = ops.linear(ops.rms_norm(x, weight, 1e-5), packed)
        return ops.gated_rms_norm(both[:, WIDTH:], both[:, :WIDTH], weight, 1e-5, 2)

    inputs = x.clone()
    program, out = ops.record(lambda: function(inputs))
    assert program.num_calls == 3
    for seed in (4, 5):
        inputs.copy_(random(7, WIDTH, seed=seed))
        out.fill_(7.0)
        program.run(num_rows)
        assert same_bytes(out[:num_rows], function(inputs[:num_rows]))
        assert (out[num_rows:] == 7.0).all()


def test_nothing_is_computed_while_recording(ops: CpuOps) -> None:
    x, update = random(3, WIDTH), random(3, WIDTH, seed=1)
    before, weight = x.clone(), random(WIDTH, seed=9)
    program, _ = ops.record(lambda: ops.add_rms_norm(x, update, 1.0, weight, 1e-5))
    assert same_bytes(x, before)
    program.run(3)
    assert same_bytes(x, before + update)


def test_outputs_that_nobody_holds_give_their_memory_to_later_ones(ops: CpuOps) -> None:
    x, weight = random(4, WIDTH), random(WIDTH, seed=1)
    program, out = ops.record(lambda: chain(ops, x, weight, 50))
    assert program.num_bytes == 2 * 4 * WIDTH * 4
    program.run(4)
    assert same_bytes(out, chain(ops, x, weight, 50))


def test_outputs_that_somebody_holds_a_view_of_keep_their_memory(ops: CpuOps) -> None:
    x, weight = random(4, WIDTH), random(WIDTH, seed=1)

    def function() -> tuple[Tensor, Tensor]:
        half = ops.rms_norm(x, weight, 1e-5)[:, WIDTH // 2 :]
        return half, chain(ops, x, weight, 3)

    program, (half, _) = ops.record(function)
    program.run(4)
    assert same_bytes(half, ops.rms_norm(x, weight, 1e-5)[:, WIDTH // 2 :])


def test_what_computes_and_is_no_op_is_refused(ops: CpuOps) -> None:
    x, weight = random(4, WIDTH), random(WIDTH, seed=1)
    for compute in (lambda y: y + 1, lambda y: y.clone(), lambda y: y[:, ::2].contiguous(), torch.relu_):
        with pytest.raises(RuntimeError, match="can't be recorded"):
            ops.record(lambda compute=compute: compute(ops.rms_norm(x, weight, 1e-5)))
    assert same_bytes(ops.rms_norm(x, weight, 1e-5), ops.rms_norm(x.clone(), weight, 1e-5))


def test_program_ends_at_the_first_call_that_fails(ops: CpuOps) -> None:
    x, state, slots = random(2, 8), torch.zeros(3, 1, 8), int32(1, 2)
    weight = random(8, 2, seed=1)

    other = int32(1, 2)
    counter = torch.zeros(1, dtype=torch.int64)
    norm_weight = random(8, seed=2)

    def function() -> Tensor:
        first = ops.conv_update(x, weight, None, state, slots, slots)
        second = ops.conv_update(first, weight, None, state, other, other)
        return ops.rms_norm(second, norm_weight, 1e-5)

    program, out = ops.record(function, counter.data_ptr())
    program.run(2)
    assert counter.item() == 3
    other[1] = 3
    kept = out.clone()
    with pytest.raises(ValueError, match=r"conv_update: .*out of range"):
        program.run(2)
    assert counter.item() == 4
    assert same_bytes(out, kept)
    program.run(1)
    assert counter.item() == 7


def test_more_rows_than_recorded_are_refused(ops: CpuOps) -> None:
    x, weight = random(4, WIDTH), random(WIDTH, seed=1)
    program, _ = ops.record(lambda: ops.rms_norm(x, weight, 1e-5))
    with pytest.raises(AssertionError, match="5 rows"):
        program.run(5)


def test_timed_run_computes_the_same_and_tells_each_calls_seconds(ops: CpuOps) -> None:
    x, weight = random(4, WIDTH), random(WIDTH, seed=1)
    program, out = ops.record(lambda: chain(ops, x, weight, 3))
    seconds = program.run_timed(4)
    assert len(seconds) == 3
    assert all(0 < second < 1 for second in seconds)
    assert same_bytes(out, chain(ops, x, weight, 3))


def test_closed_ops_run_no_program(ops: CpuOps) -> None:
    x, weight = random(4, WIDTH), random(WIDTH, seed=1)
    program, _ = ops.record(lambda: ops.rms_norm(x, weight, 1e-5))
    ops.close()
    with pytest.raises(RuntimeError, match="closed"):
        program.run(1)


def test_reference_cannot_record() -> None:
    assert ReferenceOps("tests").record(lambda: None) is None
