"""The KV pool: layout, copies of blocks, checksums."""

import pytest
import torch

from mambad.engine.kv_pool import KVPool
from mambad.engine.models.spec import AttentionSpec, LayerSpec, Mamba1Spec, ModelSpec, NormSpec

NORM = NormSpec(1e-5)
MAMBA1 = Mamba1Spec(
    inner_size=6, state_size=4, conv_width=3, dt_rank=2, has_conv_bias=True, has_proj_bias=False
)
NUM_BLOCKS, BLOCK_SIZE = 5, 4


def model(*mixers: Mamba1Spec | AttentionSpec) -> ModelSpec:
    return ModelSpec(
        family="toy",
        vocab_size=8,
        real_vocab_size=8,
        hidden_size=4,
        layers=tuple(LayerSpec(NORM, mixer) for mixer in mixers),
        tied=True,
        final_norm=NORM,
    )


def attention(kv_heads: int, head_dim: int) -> AttentionSpec:
    return AttentionSpec(num_heads=4, kv_heads=kv_heads, head_dim=head_dim, scale=0.5, has_bias=False)


HYBRID = model(MAMBA1, attention(2, 3), MAMBA1, attention(1, 8))


@pytest.fixture
def pool() -> KVPool:
    """Two attention layers of unlike shapes; every number differs from every other."""
    pool = KVPool(HYBRID, NUM_BLOCKS, BLOCK_SIZE, torch.device("cpu"))
    first = 0
    for tensor in (*pool.layer(1), *pool.layer(3)):
        tensor.copy_(torch.arange(first, first + tensor.numel(), dtype=torch.float32).view(tensor.shape))
        first += tensor.numel()
    return pool


def contents(pool: KVPool, block_id: int) -> list[bytes]:
    return [tensor[block_id].numpy().tobytes() for tensor in (*pool.layer(1), *pool.layer(3))]


def all_contents(pool: KVPool) -> list[list[bytes]]:
    return [contents(pool, block_id) for block_id in range(NUM_BLOCKS + 1)]


def test_layers_have_the_shapes_of_the_spec_and_are_contiguous(pool: KVPool) -> None:
    for index, shape in ((1, (6, 4, 2, 3)), (3, (6, 4, 1, 8))):
        keys, values = pool.layer(index)
        assert keys.shape == values.shape == shape
        assert keys.is_contiguous()
        assert values.is_contiguous()
        assert keys.dtype == values.dtype == torch.float32
    assert pool.num_bytes == (NUM_BLOCKS + 1) * HYBRID.block_bytes(BLOCK_SIZE)


def test_layer_without_attention_has_no_blocks(pool: KVPool) -> None:
    with pytest.raises(KeyError):
        pool.layer(0)


def test_model_without_attention_needs_no_memory() -> None:
    pool = KVPool(model(MAMBA1), 0, BLOCK_SIZE, torch.device("cpu"))
    assert pool.num_bytes == 0
    pool.load([], pool.export([]))


def test_exported_blocks_load_into_other_blocks_in_order(pool: KVPool) -> None:
    before = all_contents(pool)
    exported = pool.export([4, 1])
    assert all(tensor.is_contiguous() and tensor.device.type == "cpu" for tensor in exported)
    pool.poison([4, 1])
    pool.load([2, 5], exported)
    assert contents(pool, 2) == before[4]
    assert contents(pool, 5) == before[1]
    assert [contents(pool, block_id) for block_id in (0, 3)] == [before[0], before[3]]


def test_exported_blocks_do_not_change_with_the_pool(pool: KVPool) -> None:
    exported = pool.export([1, 2, 3])
    before = [tensor.numpy().tobytes() for tensor in exported]
    pool.poison([1, 2, 3])
    assert [tensor.numpy().tobytes() for tensor in exported] == before


def test_poison_touches_its_blocks_only(pool: KVPool) -> None:
    before = all_contents(pool)
    pool.poison([0, 3])
    for tensor in (*pool.layer(1), *pool.layer(3)):
        assert tensor[[0, 3]].isnan().all()
    assert [contents(pool, i) for i in (1, 2, 4, 5)] == [before[i] for i in (1, 2, 4, 5)]


@pytest.mark.parametrize("layer_index", [1, 3])
@pytest.mark.parametrize("side", [0, 1])
def test_checksum_notices_one_changed_number(pool: KVPool, layer_index: int, side: int) -> None:
    before = [pool.checksum(i) for i in range(NUM_BLOCKS + 1)]
    assert len(set(before)) == NUM_BLOCKS + 1
    pool.layer(layer_index)[side][2, 3, 0, 1] += 1.0
    after = [pool.checksum(i) for i in range(NUM_BLOCKS + 1)]
    assert [a == b for a, b in zip(after, before, strict=True)] == [True, True, False, True, True, True]


@pytest.mark.parametrize("block_ids", [[0], [1, -1], [NUM_BLOCKS + 1]])
def test_null_block_and_blocks_outside_the_pool_are_refused(pool: KVPool, block_ids: list[int]) -> None:
    exported = pool.export([1] * len(block_ids))
    with pytest.raises(AssertionError):
        pool.export(block_ids)
    with pytest.raises(AssertionError):
        pool.load(block_ids, exported)
