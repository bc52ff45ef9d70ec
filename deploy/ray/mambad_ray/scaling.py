"""How many replicas: as many as keep the slots of each busy up to a share, waiting requests included.

One pure function and the policy that Ray Serve calls with what the replicas record. Needs no Ray.
"""

import math
from typing import Any

TARGET_SHARE = 0.75
"""Share of the slots that may be busy before another replica is asked for."""
METRICS = ("running", "waiting", "slots")
"""What a replica records: requests in its batch, requests in line, and how many may run at once."""


def wanted_replicas(load: float, slots: float, share: float = TARGET_SHARE) -> int:
    """Return how many replicas it takes.

    Args:
        load: requests of all replicas together, running and waiting.
        slots: requests that one replica can run at once.
        share: of the slots, that shall be busy.
    """
    return math.ceil(load / (max(slots, 1.0) * share)) if load > 0 else 0


def by_slots(context: Any) -> tuple[int, dict[str, Any]]:
    """Ray Serve's policy: `context` is its AutoscalingContext. Bounds and delays are applied by Serve.

    A replica that has not recorded anything yet adds no load. Until one has, the number stays as it is. What
    waits at the routers is in no engine yet, and counts too. A request with several choices counts once for
    each slot; one whose stream is still on its way to the client counts after it has left its slot, so that
    replicas also come where streaming, not the engine, is what takes long.
    """
    metrics = context.aggregated_metrics or {}
    slots = max(metrics.get("slots", {}).values(), default=0.0)
    if slots <= 0:
        return context.target_num_replicas, {}
    engines = sum(sum(metrics.get(name, {}).values()) for name in ("running", "waiting"))
    load = max(engines + (context.total_queued_requests or 0.0), context.total_num_requests)
    return wanted_replicas(load, slots), {}
