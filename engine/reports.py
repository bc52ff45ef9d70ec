"""What the engine says of itself: the numbers behind `/metrics` and the table behind `/state`. No torch."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mambad.engine.cache_manager import CacheManager
from mambad.engine.counters import Counters
from mambad.engine.id_pool import IdState
from mambad.engine.outputs import EngineStats
from mambad.engine.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class LastLeak:
    """The newest leak: when (seconds since the epoch), of what, which, and whose it was."""

    time_s: float
    kind: str
    id: int
    owner: int


@dataclass(frozen=True, slots=True)
class EngineReport:
    """Reads the parts of the engine between two steps. Changes nothing."""

    cache: CacheManager
    scheduler: Scheduler
    counters: Counters
    clock: Callable[[], float]
    last_leak: LastLeak | None

    def stats(self, last_step_time_s: float) -> EngineStats:
        """Return all gauges and counters at once."""
        requests, cache, counters = self.scheduler.requests, self.cache, self.counters
        leak = self.last_leak
        return EngineStats(
            time_s=time.time(),
            slots=cache.slot_counts(),
            slot_capacity=cache.slots.capacity,
            slots_available=cache.slots.count(IdState.FREE),
            slot_size_bytes=self.scheduler.limits.slot_bytes,
            kv_blocks=cache.block_counts(),
            kv_block_capacity=cache.blocks.capacity,
            cache_usage_ratio=cache.usage_ratio(),
            num_running=len(requests.running),
            num_waiting=len(requests.waiting) - requests.waiting.num_preempted,
            num_preempted=requests.waiting.num_preempted,
            num_waiting_tokens=requests.waiting.num_tokens,
            swapped_bytes=requests.swapped_bytes,
            slots_leaked=cache.num_leaked,
            slots_reclaimed=cache.num_reclaimed,
            audits=cache.num_audits,
            last_leak_time_s=leak.time_s if leak else 0.0,
            last_leak=f"{leak.kind} {leak.id} of request {leak.owner}" if leak else "",
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            preemptions=counters.preemptions,
            nonfinite=counters.nonfinite,
            finished=dict(counters.finished),
            graph_replays=dict(counters.graph_replays),
            graph_padding_rows=counters.graph_padding_rows,
            step_duration_s={kind: buckets.snapshot() for kind, buckets in counters.step_duration_s.items()},
            step_tokens=counters.step_tokens.snapshot(),
            batch_rows=counters.batch_rows.snapshot(),
            last_step_time_s=last_step_time_s,
            num_steps=counters.num_steps,
        )

    def state(
        self, entries: bool = True, ids: bool = False, slot_state: str | None = None, limit: int = 1000
    ) -> dict[str, Any]:
        """Return one engine's part of `GET /state`.

        Args:
            entries: whether to list the slots that are not free.
            ids: whether to name requests; else their ids are hashed.
            slot_state: list only slots in this state.
            limit: most entries.
        """
        requests, leak = self.scheduler.requests, self.last_leak
        report: dict[str, Any] = {
            "slots": self.cache.slot_counts(),
            "kv_blocks": self.cache.block_counts(),
            "requests": {
                "running": len(requests.running),
                "waiting": len(requests.waiting) - requests.waiting.num_preempted,
                "preempted": requests.waiting.num_preempted,
            },
            "last_leak": None
            if leak is None
            else {"time": leak.time_s, "kind": leak.kind, "id": leak.id, "owner": leak.owner},
        }
        if entries:
            report["entries"] = self._entries(ids, slot_state, limit)
        return report

    def _entries(self, ids: bool, slot_state: str | None, limit: int) -> list[dict[str, Any]]:
        pool, now = self.cache.slots, self.clock()
        rows: list[dict[str, Any]] = []
        for slot in range(1, pool.capacity + 1):
            state = pool.state(slot).name.lower()
            is_wanted = state == slot_state if slot_state else state != "free"
            if not is_wanted:
                continue
            if len(rows) == limit:
                break
            request = self.scheduler.requests.by_key(pool.owner(slot))
            name = None
            if request is not None:
                name = (
                    request.request_id
                    if ids
                    else hashlib.sha256(request.request_id.encode()).hexdigest()[:16]
                )
            rows.append(
                {
                    "slot": slot,
                    "generation": pool.generation(slot),
                    "state": state,
                    "age_s": round(now - pool.since(slot), 3),
                    "num_tokens": request.num_computed_tokens if request else 0,
                    "request": name,
                }
            )
        return rows
