"""Offsets beyond 2^31 elements: states, caches and activations that lie far into huge, untouched memory."""

import mmap

import pytest
import torch
from kernels_cases import (
    ChunkOf,
    StateOp,
    conv_op,
    int32,
    make_chunks,
    prompt_chunks,
    same_bytes,
    scan_op,
    ssd_op,
)
from torch import Tensor

from mambad.kernels.ops import Ops

MAP_NORESERVE = 0x4000
NUM_ELEMENTS = 2**31 + 2**22
"""float32 elements of a mapping: 8.6 GB of addresses, of which a test touches a few pages."""


def map_memory() -> Tensor:
    """Return zeroed float32 elements, more than 31 bits can count, without memory behind them."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, NUM_ELEMENTS * 4, flags=flags), dtype=torch.float32)


def far_rows(tensor: Tensor, memory: Tensor) -> Tensor:
    """Return an equal view of three rows in memory, the last beyond 2^31 elements."""
    view = memory.as_strided(tensor.shape, (2**30, *tensor.stride()[1:]))
    return view.copy_(tensor)


@pytest.mark.parametrize(
    "op", [conv_op(2048, 4), scan_op(1024, 16), ssd_op(8, 64, 1, 64)], ids=lambda op: op.name
)
def test_last_slot_of_a_huge_pool_is_read_and_written(ops: Ops, op: StateOp) -> None:
    slot_size = op.states(0)[0].numel()
    num_slots = NUM_ELEMENTS // slot_size
    huge = map_memory()[: num_slots * slot_size].view(num_slots, *op.slot_shape)
    states = op.states(1)
    last = num_slots - 1
    assert last * slot_size > 2**31
    huge[last] = states[1]
    expected = op.prefill(ops, op.tokens(2), states, make_chunks(ChunkOf(2, 1, 1)))
    output = op.prefill(ops, op.tokens(2), huge, make_chunks(ChunkOf(2, last, last)))
    assert same_bytes(output, expected)
    assert same_bytes(huge[last], states[1])
    expected = op.update(ops, op.tokens(1), states, int32(1), int32(1))
    output = op.update(ops, op.tokens(1), huge, int32(last), int32(last))
    assert same_bytes(output, expected)
    assert same_bytes(huge[last], states[1])


@pytest.mark.parametrize("op", [conv_op(24, 4), scan_op(24, 16), ssd_op(3, 8, 1, 16)], ids=lambda op: op.name)
def test_activation_rows_may_lie_far_apart(ops: Ops, op: StateOp) -> None:
    tokens = op.tokens(3)
    far = tuple(far_rows(tensor, map_memory()) for tensor in tokens)
    chunks = make_chunks(*prompt_chunks((1, 2), 1))
    slots = int32(1, 2, 3)
    assert same_bytes(
        op.prefill(ops, far, op.states(1), chunks), op.prefill(ops, tokens, op.states(1), chunks)
    )
    assert same_bytes(
        op.update(ops, far, op.states(3), slots, slots), op.update(ops, tokens, op.states(3), slots, slots)
    )


def test_row_ops_take_rows_that_lie_far_apart(ops: Ops) -> None:
    x = torch.randn(3, 24, generator=torch.Generator().manual_seed(0))
    far = far_rows(x, map_memory())
    weight = torch.ones(24)
    packed = ops.pack_linear(torch.ones(5, 24), None)
    assert same_bytes(ops.linear(far, packed), ops.linear(x, packed))
    assert same_bytes(ops.rms_norm(far, weight, 1e-5), ops.rms_norm(x, weight, 1e-5))
    assert same_bytes(
        ops.gated_rms_norm(far, far, weight, 1e-5, 1), ops.gated_rms_norm(x, x, weight, 1e-5, 1)
    )
    assert same_bytes(ops.silu_mul(far), ops.silu_mul(x))


def test_last_block_of_a_huge_cache_is_written_and_attended_to(ops: Ops) -> None:
    q, k, v = torch.randn(3, 3, 2, 64, generator=torch.Generator().manual_seed(0)).unbind()
    num_blocks = NUM_ELEMENTS // (16 * 2 * 64)
    assert (num_blocks - 1) * (16 * 2 * 64) > 2**31
    outputs = []
    for count, memories in ((num_blocks, (map_memory(), map_memory())), (2, torch.zeros(2, 4096).unbind())):
        caches = [memory[: count * 2048].view(count, 16, 2, 64) for memory in memories]
        table = torch.tensor([[0], [count - 1]], dtype=torch.int32)
        where = (*caches, table, int32(1))
        ops.kv_write(k, v, *caches, int32(0, 1, 2), table, int32(1, 1, 1))
        assert same_bytes(caches[0][count - 1, :3].contiguous(), k)
        assert same_bytes(caches[1][count - 1, :3].contiguous(), v)
        prefilled = ops.attention_prefill(q, *where, int32(0), int32(0, 3), 0.125)
        outputs.append((prefilled, ops.attention_decode(q[2:], *where, int32(2), 0.125)))
    assert same_bytes(outputs[0][0], outputs[1][0])
    assert same_bytes(outputs[0][1], outputs[1][1])
