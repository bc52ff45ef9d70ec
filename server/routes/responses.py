"""`POST /v1/responses`; `GET` and `DELETE /v1/responses/{id}`, and `POST /v1/responses/{id}/cancel`.

What has no body names its `cache_salt`, if it has one, in the query.
"""

import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mambad.server.answers import json_answer
from mambad.server.choice import AlignedToken
from mambad.server.context import AppContext, context_of
from mambad.server.convert import CompletionPlan
from mambad.server.engine_port import info_of
from mambad.server.errors import invalid
from mambad.server.logprobs import response_logprobs
from mambad.server.offload import INLINE_BYTES
from mambad.server.openapi import SERVICE_ERRORS, json_answer_operation, json_operation, link
from mambad.server.request_record import record_of
from mambad.server.response_answer import ResponseAnswer
from mambad.server.response_object import ResponseHead
from mambad.server.response_output import MakeEntries, ResponseOutput
from mambad.server.schemas.response_answers import DeletedResponse, ResponseEvent, ResponseObject
from mambad.server.schemas.responses import ResponsesRequest
from mambad.server.serve_plan import deliver, submit_plan
from mambad.server.tenants import key_digest, tenant_of

router = APIRouter()
PATH = "/v1/responses/{response_id}"
CREATE = json_operation(ResponsesRequest, answer=ResponseObject, streams=True, chunk=ResponseEvent)
SALT = {"name": "cache_salt", "in": "query", "required": False, "schema": {"type": "string"}}
READ = json_answer_operation(ResponseObject, errors=SERVICE_ERRORS) | {"parameters": [SALT]}
CREATE["responses"]["200"]["links"] = {
    "retrieve": link(PATH, "get", response_id="/id"),
    "cancel": link(f"{PATH}/cancel", "post", response_id="/id"),
    "delete": link(PATH, "delete", response_id="/id"),
}
DELETE = json_answer_operation(DeletedResponse, errors=SERVICE_ERRORS) | {"parameters": [SALT]}


@router.post("/v1/responses", openapi_extra=CREATE)
async def create_response(request: Request) -> Response:
    """Continue a conversation, and keep it."""
    context, arrived_s = context_of(request), time.monotonic()
    info, digest = info_of(context.engine), key_digest(request.headers, context.api_keys)
    async with context.bodies.read(request) as raw:
        # What is continued may be long, however short the request: not on the event loop.
        num_bytes = len(raw) + INLINE_BYTES if b'"previous_response_id"' in raw else len(raw)
        convert = partial(context.responses.response, raw, info, digest)
        plan = await context.convert(request, num_bytes, convert)
    completion = plan.chat.completion
    head = ResponseHead(f"resp_{uuid.uuid4().hex}", completion.model, plan.asked)
    reader = await submit_plan(request, completion, head.id, arrived_s)
    output = ResponseOutput(plan.chat.form, _make_entries(context, completion))
    answer = ResponseAnswer(plan, head, reader, output, context.text, context.response_desk)
    if plan.is_background:
        record = record_of(request.scope)
        if record is not None and record.generation is not None:
            record.generation.is_detached = True
        return answer.in_background(context.background)
    return await deliver(request, answer, completion.stream)


@router.get(PATH, openapi_extra=READ)
async def retrieve_response(request: Request, response_id: str) -> Response:
    """Return a response as it is."""
    for name in ("stream", "starting_after"):
        if request.query_params.get(name, "false") not in ("false", "0", ""):
            raise invalid(name, f"`{name}` is not supported by this endpoint.", "unsupported_parameter")
    return json_answer(context_of(request).response_desk.body(_tenant(request), response_id))


@router.delete(PATH, openapi_extra=DELETE)
async def delete_response(request: Request, response_id: str) -> Response:
    """Forget a response; one that is being made is ended first."""
    context_of(request).response_desk.delete(_tenant(request), response_id)
    return json_answer({"id": response_id, "object": "response", "deleted": True})


@router.post(f"{PATH}/cancel", openapi_extra=READ)
async def cancel_response(request: Request, response_id: str) -> Response:
    """End a response that is being made; return it."""
    return json_answer(context_of(request).response_desk.cancel(_tenant(request), response_id))


def _tenant(request: Request) -> str:
    digest = key_digest(request.headers, context_of(request).api_keys)
    return tenant_of(digest, request.query_params.get("cache_salt"))


def _make_entries(context: AppContext, plan: CompletionPlan) -> MakeEntries | None:
    """Return what makes log-probabilities, if they were asked for."""
    options, text = plan.text_options, context.text
    if options.num_logprobs < 0:
        return None
    hidden_ids = text.special_ids - options.visible_ids if options.skip_special_tokens else frozenset()

    def make_entries(aligned: Sequence[AlignedToken]) -> list[dict[str, Any]]:
        return response_logprobs(aligned, text, hidden_ids)

    return make_entries
