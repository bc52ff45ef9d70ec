"""A bfloat16 state is a float32 one, rounded to nearest even wherever it is written, and nowhere else."""

import pytest
import torch
from kernels_cases import (
    StateOp,
    int32,
    make_chunks,
    part,
    prompt_chunks,
    same_bytes,
    scan_op,
    ssd_op,
    with_bfloat16_state,
)

from mambad.kernels.ops import Ops

LENGTHS = (64, 5, 1, 64, 64, 64, 30)
SIZES = (scan_op(24, 16), scan_op(83, 21), ssd_op(3, 8, 1, 16), ssd_op(4, 40, 2, 21))

each_size = pytest.mark.parametrize("op", SIZES, ids=lambda op: op.name)


@each_size
def test_every_chunk_of_a_call_starts_from_the_rounded_state(ops_at_level: Ops, op: StateOp) -> None:
    tokens, rounded = op.tokens(sum(LENGTHS)), with_bfloat16_state(op).states(2)
    exact = rounded.float()
    chunks = prompt_chunks(LENGTHS, 1, is_continued=True)
    output = op.prefill(ops_at_level, tokens, rounded, make_chunks(*chunks))
    first = 0
    for chunk in chunks:
        end = first + chunk.length
        one = op.prefill(ops_at_level, part(tokens, first, end), exact, make_chunks(chunk))
        assert same_bytes(output[first:end], one)
        exact = exact.bfloat16().float()
        first = end
    assert same_bytes(rounded, exact.bfloat16())


@each_size
def test_every_row_starts_from_the_rounded_state(ops_at_level: Ops, op: StateOp) -> None:
    rounded = with_bfloat16_state(op).states(3)
    exact = rounded.float()
    for seed, (reads, writes) in enumerate((((1, 3), (2, 3)), ((2, 3), (2, 1)), ((0, 1), (3, 1)))):
        tokens = op.tokens(2, seed)
        output = op.update(ops_at_level, tokens, rounded, int32(*reads), int32(*writes))
        assert same_bytes(output, op.update(ops_at_level, tokens, exact, int32(*reads), int32(*writes)))
        assert output.isfinite().all()
        exact = exact.bfloat16().float()
        assert same_bytes(rounded, exact.bfloat16())


def test_numbers_round_to_the_nearest_and_ties_to_even(ops_at_level: Ops) -> None:
    lower = torch.tensor([1.0, 1.0078125, -1.0, 3.0e38, 1e-30])
    step = lower.bfloat16().view(torch.int16)
    above = (step + 1).view(torch.bfloat16).float()
    lower = step.view(torch.bfloat16).float()
    middle = (lower + above) / 2
    near = [torch.nextafter(middle, lower), middle, torch.nextafter(middle, above)]
    x = torch.cat([*near, torch.tensor([torch.inf, -torch.inf, torch.nan, 3.4028235e38])])
    for num_rows in (x.numel(), 1):
        values = x[:num_rows].view(1, 1, num_rows)
        states = torch.zeros(2, 1, num_rows, 1, dtype=torch.bfloat16)
        one, zero = torch.ones(1, 1, 1), torch.zeros(1)
        ops_at_level.ssd_state_update(
            values, zero[None], -torch.ones(1), one, one, zero, zero, (1.0, 1.0), states, int32(1), int32(1)
        )
        kept, expected = states[1].flatten(), values.flatten().bfloat16()
        assert torch.equal(kept.isnan(), expected.isnan())
        assert same_bytes(kept[~kept.isnan()], expected[~expected.isnan()])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes_are_refused(ops: Ops, dtype: torch.dtype) -> None:
    if ops.name == "reference":
        pytest.skip("the reference leaves dtypes to torch")
    op = SIZES[0]
    with pytest.raises(ValueError, match=r"ssm_state is torch\.float"):
        op.update(ops, op.tokens(1), op.states(1).to(dtype), int32(1), int32(1))
