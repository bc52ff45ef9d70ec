"""`GET /state`: what every slot does, for administrators."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from mambad.engine.outputs import SLOT_STATES
from mambad.server.access import check_admin
from mambad.server.answers import json_answer
from mambad.server.context import context_of
from mambad.server.errors import invalid
from mambad.server.openapi import json_answer_operation
from mambad.server.schemas.answers import StateReport

router = APIRouter()
SCHEMA_VERSION = 1
DEFAULT_LIMIT, MAX_LIMIT = 1000, 100_000
SWITCH: dict[str, Any] = {"enum": ["0", "1"]}
EMPTY_REPORT: dict[str, Any] = {"slots": {}, "kv_blocks": {}, "requests": {}, "last_leak": None}


@router.get("/state", openapi_extra=json_answer_operation(StateReport, errors=(401,)))
async def state(
    request: Request,
    entries: Annotated[str, Query(json_schema_extra=SWITCH)] = "1",
    ids: Annotated[str, Query(json_schema_extra=SWITCH)] = "0",
    slot_state: Annotated[str | None, Query(json_schema_extra={"anyOf": [{"enum": [*SLOT_STATES]}]})] = None,
    limit: Annotated[str, Query(json_schema_extra={"pattern": "^([1-9][0-9]{0,4})?$"})] = "",
) -> Response:
    """Report slots, blocks and requests, as the engine saw them between two steps."""
    context = context_of(request)
    check_admin(request, context.admin_keys, context.settings.is_loopback)
    if slot_state is not None and slot_state not in SLOT_STATES:
        raise invalid("slot_state", f"`slot_state` must be one of {', '.join(SLOT_STATES)}.")
    wants_entries = _switch("entries", entries)
    reports = await context.engine.state_reports(
        entries=wants_entries, ids=_switch("ids", ids), slot_state=slot_state, limit=_limit(limit)
    )
    engines = [
        {"engine": report["engine"], "stale": report["stale"], **EMPTY_REPORT, **report} for report in reports
    ]
    if not wants_entries:
        for engine in engines:
            engine.pop("entries", None)  # the last report of an engine that does not answer may hold them
    head = {"object": "mambad.state", "schema_version": SCHEMA_VERSION, "time": time.time()}
    return json_answer({**head, "engines": engines})


def _switch(name: str, value: str) -> bool:
    if value not in ("0", "1"):
        raise invalid(name, f"`{name}` must be 0 or 1.")
    return value == "1"


def _limit(value: str) -> int:
    if not value:
        return DEFAULT_LIMIT
    is_number = value.isascii() and value.isdigit() and len(value) < 10
    if not is_number or not 1 <= int(value) <= MAX_LIMIT:
        raise invalid("limit", f"`limit` must be a number from 1 to {MAX_LIMIT}.")
    return int(value)
