"""`/live`, `/ping`, `/ready`, `/health`, `/load`, `/version`: cheap enough for any probe, open without a key.

| | loading | ready | draining | dead |
|---|---|---|---|---|
| `/live` `/ping` | 200 | 200 | 200 | 503 |
| `/ready` `/health` | 503 | 200 | 503 | 503 |
"""

import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mambad.server.answers import json_answer
from mambad.server.context import context_of
from mambad.server.engine_port import EnginePort
from mambad.server.errors import RETRY_LATER
from mambad.server.openapi import json_answer_operation
from mambad.server.schemas.answers import Health, LoadAnswer, VersionAnswer

router = APIRouter()
REASONS = {"loading": "model_loading", "ready": "", "draining": "draining", "dead": "engine_dead"}
DESCRIPTION = json_answer_operation(Health)
DESCRIPTION["responses"]["503"] = DESCRIPTION["responses"]["200"] | {
    "description": "Loading, draining or dead."
}


@router.head("/live", include_in_schema=False)
@router.head("/ping", include_in_schema=False)
@router.get("/live", openapi_extra=DESCRIPTION)
@router.get("/ping", openapi_extra=DESCRIPTION)
@router.post("/ping", openapi_extra=DESCRIPTION)
async def live(request: Request) -> Response:
    """Tell whether the process does its work, or will once it has loaded."""
    engine = context_of(request).engine
    return _answer(engine, is_good=engine.status.phase != "dead")


@router.head("/ready", include_in_schema=False)
@router.head("/health", include_in_schema=False)
@router.get("/ready", openapi_extra=DESCRIPTION)
@router.get("/health", openapi_extra=DESCRIPTION)
async def ready(request: Request) -> Response:
    """Tell whether new requests should be sent here."""
    engine = context_of(request).engine
    return _answer(engine, is_good=engine.status.phase == "ready")


@router.get("/load", openapi_extra=json_answer_operation(LoadAnswer))
async def show_load(request: Request) -> Response:
    """Count the requests that are being worked on or wait, for simple load balancers."""
    stats = context_of(request).engine.stats
    load = sum(each.num_running + each.num_waiting + each.num_preempted for each in stats)
    return json_answer({"server_load": load})


@router.get("/version", openapi_extra=json_answer_operation(VersionAnswer))
async def show_version(request: Request) -> Response:
    """Name the version."""
    return json_answer({"version": context_of(request).version})


def _answer(engine: EnginePort, is_good: bool) -> Response:
    status = engine.status
    body: dict[str, Any] = {
        "status": "ok" if status.phase == "ready" else status.phase,
        "reason": REASONS[status.phase],
        "running": sum(stats.num_running for stats in engine.stats),
        "since_s": round(max(time.time() - status.since_s, 0.0), 3),
    }
    if status.progress is not None and status.phase == "loading":
        body["progress"] = round(status.progress, 3)
    return json_answer(body) if is_good else json_answer(body, 503, RETRY_LATER)
