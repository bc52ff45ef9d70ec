"""Slots and blocks of requests."""

import pytest

from mambad.engine.cache_manager import CacheManager


def test_admission_without_enough_blocks_takes_neither_slot_nor_block() -> None:
    cache = CacheManager(num_slots=2, num_blocks=3, block_size=4)
    assert cache.admit(1, num_tokens=13, now=0) is None
    assert cache.slot_counts()["free"] == 2
    assert cache.block_counts()["free"] == 3
    assert not cache.holds(1)


def test_admission_without_a_slot_takes_no_block() -> None:
    cache = CacheManager(num_slots=1, num_blocks=3, block_size=4)
    assert cache.admit(1, 4, 0) is not None
    assert cache.admit(2, 4, 0) is None
    assert cache.block_counts()["free"] == 2


def test_growth_adds_only_the_missing_blocks_and_is_all_or_nothing() -> None:
    cache = CacheManager(num_slots=1, num_blocks=3, block_size=4)
    cache.admit(1, 4, 0)
    cache.activate(1, 0)
    assert cache.grow(1, 4, 0) == []
    assert len(cache.grow(1, 5, 0) or []) == 1
    assert cache.grow(1, 100, 0) is None
    assert len(cache.allocation(1).blocks) == 2


def test_a_small_prompt_takes_one_slot_and_only_its_blocks() -> None:
    cache = CacheManager(num_slots=4, num_blocks=100, block_size=16)
    cache.admit(1, 3, 0)
    assert cache.slot_counts()["reserved"] == 1
    assert cache.block_counts()["active"] == 1


def test_releasing_twice_raises() -> None:
    cache = CacheManager(1, 0, 4)
    cache.admit(1, 4, 0)
    cache.release(1, 0, 0, 0)
    with pytest.raises(KeyError):
        cache.release(1, 0, 0, 0)


def test_a_model_without_attention_needs_no_blocks() -> None:
    cache = CacheManager(1, 0, 16)
    allocation = cache.admit(1, 10_000, 0)
    assert allocation is not None
    assert allocation.blocks == []


def test_counts_are_complete_and_add_up_in_every_state() -> None:
    cache = CacheManager(3, 4, 4)
    cache.admit(1, 4, 0)
    cache.activate(1, 0)
    cache.admit(2, 4, 0)
    cache.release(1, until_step=3, completed_step=2, now=0)
    counts = cache.slot_counts()
    assert counts == {"free": 1, "reserved": 1, "active": 0, "checkpoint": 0, "quarantined": 1, "leaked": 0}
    assert sum(cache.block_counts().values()) == 4


def test_a_leaked_slot_is_counted_once_and_reclaimed() -> None:
    cache = CacheManager(2, 2, 4)
    cache.admit(1, 4, 0)
    reports = cache.audit(set(), 0, 0)
    assert {report.kind for report in reports} == {"slot", "block"}
    assert (cache.num_leaked, cache.num_reclaimed, cache.num_audits) == (1, 0, 1)
    cache.audit(set(), 0, 0)
    cache.settle(0, 0)
    assert (cache.num_leaked, cache.num_reclaimed) == (1, 1)
    assert cache.slot_counts()["free"] == 2


def test_usage_is_the_larger_share() -> None:
    cache = CacheManager(4, 4, 4)
    cache.admit(1, 12, 0)
    assert cache.usage_ratio() == 0.75
