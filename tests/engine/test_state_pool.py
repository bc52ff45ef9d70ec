"""The state pool: layout, copies, checksums; a slot's copy is all of it and nothing else."""

import pytest
import torch

from mambad.engine.models.spec import AttentionSpec, LayerSpec, Mamba1Spec, Mamba2Spec, ModelSpec, NormSpec
from mambad.engine.state_pool import StatePool

NORM = NormSpec(1e-5)
MAMBA1 = Mamba1Spec(
    inner_size=6, state_size=4, conv_width=3, dt_rank=2, has_conv_bias=True, has_proj_bias=False
)
MAMBA2 = Mamba2Spec(
    num_heads=2,
    head_dim=3,
    state_size=5,
    num_groups=1,
    conv_width=4,
    dt_limit=(0.0, float("inf")),
    norm_eps=1e-5,
    has_conv_bias=True,
    has_proj_bias=False,
)
ATTENTION = AttentionSpec(num_heads=2, kv_heads=1, head_dim=4, scale=0.5, has_bias=False)
NUM_SLOTS = 4


def model(*mixers: Mamba1Spec | Mamba2Spec | AttentionSpec) -> ModelSpec:
    return ModelSpec(
        family="toy",
        vocab_size=8,
        real_vocab_size=8,
        hidden_size=4,
        layers=tuple(LayerSpec(NORM, mixer) for mixer in mixers),
        tied=True,
        final_norm=NORM,
    )


@pytest.fixture(params=["float32", "bfloat16"])
def spec(request: pytest.FixtureRequest) -> ModelSpec:
    """Three kinds of layers, with ssm states of either dtype."""
    return model(MAMBA1, ATTENTION, MAMBA2, MAMBA1).with_ssm_dtype(request.param)


@pytest.fixture
def pool(spec: ModelSpec) -> StatePool:
    """Every number of every slot differs from every other of its layer."""
    pool = StatePool(spec, NUM_SLOTS, torch.device("cpu"))
    for index, name in KEPT:
        view = pool.layer(index, name)
        view.copy_(torch.arange(1, view.numel() + 1).view(view.shape) + 0.125 * index)
    return pool


KEPT = [(0, "conv"), (0, "ssm"), (2, "conv"), (2, "ssm"), (3, "conv"), (3, "ssm")]


def contents(pool: StatePool, slot: int) -> list[bytes]:
    return [pool.layer(index, name)[slot].view(torch.uint8).numpy().tobytes() for index, name in KEPT]


def test_views_have_the_shapes_and_dtypes_of_the_spec_and_are_contiguous(
    pool: StatePool, spec: ModelSpec
) -> None:
    shapes = {(index, name): tuple(pool.layer(index, name).shape) for index, name in KEPT}
    assert shapes == {
        (0, "conv"): (5, 2, 6),
        (0, "ssm"): (5, 4, 6),
        (2, "conv"): (5, 3, 16),
        (2, "ssm"): (5, 2, 3, 5),
        (3, "conv"): (5, 2, 6),
        (3, "ssm"): (5, 4, 6),
    }
    for index, name in KEPT:
        assert pool.layer(index, name).is_contiguous()
        dtype = spec.layers[0].mixer.ssm_dtype if name == "ssm" else "float32"
        assert str(pool.layer(index, name).dtype) == f"torch.{dtype}"


def test_bytes_are_those_of_the_spec(pool: StatePool, spec: ModelSpec) -> None:
    assert pool.num_bytes == (NUM_SLOTS + 1) * spec.slot_bytes()


def test_attention_layer_keeps_no_state(pool: StatePool) -> None:
    with pytest.raises(KeyError):
        pool.layer(1, "ssm")


def test_copy_moves_one_slot_and_leaves_the_others(pool: StatePool) -> None:
    before = [contents(pool, slot) for slot in range(NUM_SLOTS + 1)]
    pool.copy(3, 1)
    after = [contents(pool, slot) for slot in range(NUM_SLOTS + 1)]
    assert after == [before[0], before[3], before[2], before[3], before[4]]


def test_exported_slot_loads_into_another_slot(pool: StatePool) -> None:
    before = [contents(pool, slot) for slot in range(NUM_SLOTS + 1)]
    exported = pool.export(2)
    assert all(tensor.is_contiguous() and tensor.device.type == "cpu" for tensor in exported)
    pool.poison([2])
    pool.load(4, exported)
    assert contents(pool, 4) == before[2]
    assert [contents(pool, slot) for slot in (0, 1, 3)] == [before[slot] for slot in (0, 1, 3)]


def test_exported_slot_does_not_change_with_the_pool(pool: StatePool) -> None:
    exported = pool.export(2)
    before = [tensor.clone() for tensor in exported]
    pool.zero(2)
    assert all(torch.equal(tensor, kept) for tensor, kept in zip(exported, before, strict=True))


def test_zero_and_poison_touch_their_slots_only(pool: StatePool) -> None:
    before = [contents(pool, slot) for slot in range(NUM_SLOTS + 1)]
    pool.zero(3)
    pool.poison([0, 4])
    for index, name in KEPT:
        view = pool.layer(index, name)
        assert not view[3].any()
        assert view[[0, 4]].isnan().all()
    assert [contents(pool, slot) for slot in (1, 2)] == [before[1], before[2]]


def test_poisoning_nothing_changes_nothing(pool: StatePool) -> None:
    before = [contents(pool, slot) for slot in range(NUM_SLOTS + 1)]
    pool.poison([])
    assert [contents(pool, slot) for slot in range(NUM_SLOTS + 1)] == before


@pytest.mark.parametrize(("index", "name"), KEPT)
def test_checksum_notices_one_changed_number_in_any_layer(pool: StatePool, index: int, name: str) -> None:
    before = [pool.checksum(slot) for slot in range(NUM_SLOTS + 1)]
    assert len(set(before)) == NUM_SLOTS + 1
    pool.layer(index, name)[2].view(-1)[-1] += 1.0
    after = [pool.checksum(slot) for slot in range(NUM_SLOTS + 1)]
    assert [a == b for a, b in zip(after, before, strict=True)] == [True, True, False, True, True]


def test_equal_states_have_equal_checksums(pool: StatePool) -> None:
    pool.copy(1, 2)
    assert pool.checksum(1) == pool.checksum(2)


@pytest.mark.parametrize("slot", [-1, 0, NUM_SLOTS + 1])
def test_null_slot_and_slots_outside_the_pool_are_refused(pool: StatePool, slot: int) -> None:
    exported = pool.export(1)
    for touch in (
        lambda: pool.copy(1, slot),
        lambda: pool.copy(slot, 1),
        lambda: pool.export(slot),
        lambda: pool.load(slot, exported),
        lambda: pool.zero(slot),
    ):
        with pytest.raises(AssertionError):
            touch()
