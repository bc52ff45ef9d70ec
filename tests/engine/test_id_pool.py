"""The ledger of slots and blocks."""

import pytest

from mambad.engine.id_pool import Handle, IdPool, IdState, PoolError


def make(capacity: int = 3) -> IdPool:
    return IdPool("slot", capacity)


def test_the_null_id_is_never_handed_out() -> None:
    handles = make().reserve(3, owner=7)
    assert handles is not None
    assert sorted(handle.id for handle in handles) == [1, 2, 3]


def test_a_reservation_is_all_or_nothing() -> None:
    pool = make()
    assert pool.reserve(4, owner=7) is None
    assert pool.count(IdState.FREE) == 3


def test_release_bumps_the_generation_and_kills_every_handle() -> None:
    pool = make()
    handle = pool.reserve(1, owner=7)[0]  # type: ignore[index]
    pool.activate([handle])
    assert pool.release(handle, 7, until_step=0, completed_step=0)
    for use in (pool.check, lambda h: pool.activate([h]), lambda h: pool.release(h, 7, 0, 0)):
        with pytest.raises(PoolError, match="stale"):
            use(handle)
    assert pool.is_conserved()


def test_releasing_what_another_holds_raises_and_changes_nothing() -> None:
    pool = make()
    handle = pool.reserve(1, owner=7)[0]  # type: ignore[index]
    with pytest.raises(PoolError, match="held by 7, not by 8"):
        pool.release(handle, 8, 0, 0)
    assert pool.owner(handle.id) == 7


def test_an_id_that_was_never_handed_out_raises() -> None:
    with pytest.raises(PoolError, match="not held"):
        make().check(Handle(1, 0))
    with pytest.raises(PoolError, match="not in 1"):
        make().check(Handle(0, 0))


def test_an_id_in_use_by_a_launched_step_is_quarantined_until_that_step_completes() -> None:
    pool = make(1)
    handle = pool.reserve(1, owner=7)[0]  # type: ignore[index]
    assert not pool.release(handle, 7, until_step=5, completed_step=4)
    assert pool.count(IdState.QUARANTINED) == 1
    assert pool.reserve(1, owner=8) is None
    assert pool.settle(4) == []
    assert pool.settle(5) == [1]
    assert pool.reserve(1, owner=8) == [Handle(1, 1)]


def test_an_audit_finds_an_id_whose_owner_is_gone_and_the_next_one_reclaims_it() -> None:
    pool = make()
    pool.reserve(1, owner=7)
    lost = pool.reserve(1, owner=8)[0]  # type: ignore[index]
    leaks = pool.audit({7}, last_launched_step=0)
    assert [(leak.id, leak.last_owner) for leak in leaks] == [(lost.id, 8)]
    assert pool.count(IdState.LEAKED) == 1
    assert pool.is_conserved()
    assert pool.audit({7}, last_launched_step=0) == []
    assert pool.settle(0) == [lost.id]
    assert pool.count(IdState.FREE) == 2


def test_an_audit_finds_an_id_whose_owner_was_forgotten() -> None:
    pool = make()
    handle = pool.reserve(1, owner=7)[0]  # type: ignore[index]
    pool.forget_owner(handle)
    assert [leak.id for leak in pool.audit({7}, 0)] == [handle.id]
