"""`POST /debug/faults`: orders a fault from an engine. Exists under `--enable-fault-injection` only."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from mambad.engine.faults import IMMEDIATE_FAULTS, STEP_FAULTS
from mambad.server.access import check_admin
from mambad.server.answers import json_answer
from mambad.server.context import context_of
from mambad.server.errors import invalid
from mambad.server.json_body import parse_object
from mambad.server.schemas.common import WireModel

router = APIRouter()
FAULTS = (*STEP_FAULTS, *IMMEDIATE_FAULTS)


class FaultOrder(WireModel):
    """What shall go wrong, how often, on which rank; `ms` is how long a slow step takes."""

    name: str
    times: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    engine: Annotated[int, Field(ge=0)] = 0
    ms: Annotated[int, Field(ge=0, le=3_600_000)] = 1000


@router.post("/debug/faults", include_in_schema=False)
async def order_fault(request: Request) -> Response:
    """Order a fault; it has been ordered, and the immediate ones have happened, when this answers."""
    context = context_of(request)
    check_admin(request, context.admin_keys, context.settings.is_loopback)
    async with context.bodies.read(request) as raw:
        order = FaultOrder.model_validate(parse_object(raw))
    if order.name not in FAULTS:
        raise invalid("name", f"`name` must be one of {', '.join(FAULTS)}.")
    if order.engine >= len(context.engine.stats):
        raise invalid("engine", f"There is no engine {order.engine}.")
    answer = await context.engine.inject(order.name, order.times, order.ms, order.engine)
    return json_answer({"name": order.name, "is_ordered": bool(answer)})
