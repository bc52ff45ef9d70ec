"""Six bugs that servers of this kind really had, each as a small change of our own code.

The property machine of `test_engine_properties` has to find every one of them; `test_mutants` shows that it
does. A mutant is applied with pytest's monkeypatch and undone at the end.
"""

from collections.abc import Callable

import pytest
from toy_engine import FakeRunner

from mambad.engine.cache_manager import Allocation, CacheManager
from mambad.engine.id_pool import IdPool
from mambad.engine.lifecycle import Lifecycle
from mambad.engine.request import Request

Mutant = Callable[[pytest.MonkeyPatch], None]


def release_skipped_at_maximum_length(patch: pytest.MonkeyPatch) -> None:
    """vLLM #14820: a request that reaches the model's length leaves without its slot."""
    leave = Lifecycle._leave

    def keep_slot_at_the_end(self: Lifecycle, request: Request) -> None:
        if len(request.token_ids) >= self._limits.max_model_len:
            self.running.remove(request)
        else:
            leave(self, request)

    patch.setattr(Lifecycle, "_leave", keep_slot_at_the_end)


def row_not_cleared(patch: pytest.MonkeyPatch) -> None:
    """vLLM #37728: the block table still names the blocks of a request that has gone."""
    patch.setattr(FakeRunner, "clear_row", lambda self, slot: None)


def quarantine_skipped(patch: pytest.MonkeyPatch) -> None:
    """A slot that a launched step still writes is handed out again."""
    retire = IdPool._retire

    def free_at_once(self: IdPool, id_: int, until_step: int, completed_step: int, now: float) -> bool:
        return retire(self, id_, 0, completed_step, now)

    patch.setattr(IdPool, "_retire", free_at_once)


def padding_row_keeps_its_slot(patch: pytest.MonkeyPatch) -> None:
    """TRT-LLM #13278, vLLM #37728: what a row of the padded buffer held before is not overwritten."""

    def write_rows_only(self: FakeRunner, slots: list[int], size: int) -> None:
        self.decode_slots[: len(slots)] = slots

    patch.setattr(FakeRunner, "fill_decode_slots", write_rows_only)


def reservation_not_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """SGLang #12693 and others: no blocks are left, and the slot taken just before is forgotten."""

    def forget_the_slot(self: CacheManager, key: int, num_tokens: int, now: float) -> Allocation | None:
        slot = self.slots.reserve(1, key, now)
        if slot is None:
            return None
        blocks = self.blocks.reserve(self.num_blocks_for(num_tokens), key, now)
        if blocks is None:
            return None
        allocation = self._held[key] = Allocation(slot[0], blocks)
        return allocation

    patch.setattr(CacheManager, "admit", forget_the_slot)


def double_release(patch: pytest.MonkeyPatch) -> None:
    """SGLang #23327: what was given back is given back again."""
    release = CacheManager.release

    def release_twice(self: CacheManager, key: int, *where: float) -> bool:
        allocation = self._held[key]
        release(self, key, *where)  # type: ignore[arg-type]
        self._held[key] = allocation
        return release(self, key, *where)  # type: ignore[arg-type]

    patch.setattr(CacheManager, "release", release_twice)


MUTANTS: list[Mutant] = [
    release_skipped_at_maximum_length,
    row_not_cleared,
    quarantine_skipped,
    padding_row_keeps_its_slot,
    reservation_not_rolled_back,
    double_release,
]
