"""How memory becomes slots and blocks."""

import pytest

from mambad.engine.cache_plan import CacheNeeds, CachePlan, default_cache_bytes, plan_cache
from mambad.engine.errors import ConfigError

PURE = CacheNeeds(slot_bytes=1000, block_bytes=0, block_size=16)
HYBRID = CacheNeeds(slot_bytes=1000, block_bytes=100, block_size=16)


def plan(needs: CacheNeeds, num_bytes: int, **asked: int | None) -> CachePlan:
    defaults: dict[str, int | None] = {
        "num_state_slots": None, "max_model_len": None, "model_max_len": 256,
    }  # fmt: skip
    return plan_cache(needs, num_bytes, **{"max_num_seqs": 8, **defaults, **asked})  # type: ignore[arg-type]


def test_a_pure_model_gets_a_slot_a_sequence_and_no_blocks() -> None:
    made = plan(PURE, 100_000)
    assert (made.num_slots, made.num_blocks, made.max_model_len) == (8, 0, 256)
    assert made.notes == ()


def test_slots_that_memory_cannot_hold_are_clamped_with_a_note() -> None:
    made = plan(PURE, 5_500, num_state_slots=64)
    assert made.num_slots == 4
    assert "num_state_slots is 4, not 64" in made.notes[0]


def test_what_is_planned_fits_into_what_is_given() -> None:
    for num_bytes in range(2_200, 60_000, 777):
        made = plan(HYBRID, num_bytes)
        assert made.num_bytes <= num_bytes
        assert made.num_bytes == (made.num_slots + 1) * 1000 + (made.num_blocks + 1) * 100


def test_the_longest_request_fits_alone_or_the_length_is_clamped() -> None:
    made = plan(HYBRID, 4_400, max_model_len=4096)
    assert made.max_model_len == made.num_blocks * 16 < 4096
    assert "max_model_len" in made.notes[-1]
    assert plan(HYBRID, 1_000_000, max_model_len=4096).max_model_len == 4096


def test_no_more_blocks_are_planned_than_the_slots_can_use() -> None:
    assert plan(HYBRID, 10_000_000).num_blocks == 8 * 16


def test_too_little_memory_is_refused_with_the_smallest_value_that_works() -> None:
    with pytest.raises(ConfigError, match="at least 2200") as caught:
        plan(HYBRID, 2_199)
    assert plan(HYBRID, 2_200).num_slots == 1
    assert "2199" in str(caught.value)


def test_without_any_length_the_default_is_taken() -> None:
    assert plan(PURE, 100_000, model_max_len=None).max_model_len == 32768


def test_the_default_is_a_quarter_of_what_is_left_and_at_most_4_gib() -> None:
    assert default_cache_bytes(1000, 200) == 200
    assert default_cache_bytes(100, 200) == 0
    assert default_cache_bytes(1 << 40, 0) == 4 << 30


def test_the_size_of_the_state_pool_does_not_depend_on_the_block_size() -> None:
    large = CacheNeeds(1000, 100 * 16, 256)
    assert plan(large, 100_000).num_slots == plan(HYBRID, 100_000).num_slots == 8
