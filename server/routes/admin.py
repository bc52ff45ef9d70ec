"""`POST /abort_requests`: ends running requests by their ids, for administrators."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mambad.server.access import check_admin
from mambad.server.answers import json_answer
from mambad.server.context import context_of
from mambad.server.errors import invalid
from mambad.server.json_body import parse_object
from mambad.server.openapi import json_operation
from mambad.server.schemas.admin import AbortAnswer, AbortRequest

router = APIRouter()


@router.post("/abort_requests", openapi_extra=json_operation(AbortRequest, answer=AbortAnswer))
async def abort_requests(request: Request) -> Response:
    """End requests: their clients get the error `cancelled`. Ids that nobody has are no error."""
    context = context_of(request)
    check_admin(request, context.admin_keys, context.settings.is_loopback)
    async with context.bodies.read(request) as raw:
        order = AbortRequest.model_validate(parse_object(raw))
    context.converter.field_policy.check(order.model_extra or {})
    if order.request_ids is None and not order.abort_all:
        raise invalid("request_ids", "`request_ids` must be a list of ids.")
    names = frozenset(order.request_ids or ())
    is_all = bool(order.abort_all)
    num_aborted = context.engine.cancel(lambda engine_id: is_all or is_one_of(engine_id, names))
    return json_answer({"num_aborted": num_aborted})


def is_one_of(engine_id: str, names: frozenset[str]) -> bool:
    """Whether a choice belongs to an answer of one of these ids, with or without the prefix `cmpl-`."""
    answer_id = engine_id.rpartition("-")[0].partition("/")[0]
    return answer_id in names or answer_id.partition("-")[2] in names
