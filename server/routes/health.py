"""`/live`, `/ping`, `/ready`, `/health` and `/version`: cheap enough for any probe, open without a key.

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

router = APIRouter()
REASONS = {"loading": "model_loading", "ready": "", "draining": "draining", "dead": "engine_dead"}
UNAVAILABLE = {"503": {"description": "Loading, draining or dead."}}
DESCRIPTION = {"responses": UNAVAILABLE}


@router.head("/live", include_in_schema=False)
@router.head("/ping", include_in_schema=False)
@router.get("/live", openapi_extra=DESCRIPTION)
@router.get("/ping", openapi_extra=DESCRIPTION)
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


@router.get("/version")
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
