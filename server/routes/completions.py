"""`POST /v1/completions`."""

import time
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mambad.server.completion_reply import CompletionReply
from mambad.server.context import context_of
from mambad.server.engine_port import info_of
from mambad.server.openapi import json_operation
from mambad.server.reply import ReplyHead
from mambad.server.schemas.answers import CompletionChunk, CompletionObject
from mambad.server.schemas.completions import CompletionRequest
from mambad.server.serve_plan import serve_plan

router = APIRouter()
DESCRIPTION = json_operation(CompletionRequest, answer=CompletionObject, streams=True, chunk=CompletionChunk)


@router.post("/v1/completions", openapi_extra=DESCRIPTION)
async def create_completion(request: Request) -> Response:
    """Continue one or more prompts."""
    context, arrived_s = context_of(request), time.monotonic()
    info = info_of(context.engine)
    async with context.bodies.read(request) as raw:
        plan = await context.convert(request, len(raw), partial(context.converter.completion, raw, info))

    def make_reply(head: ReplyHead) -> CompletionReply:
        return CompletionReply(plan, head, context.text)

    return await serve_plan(request, plan, make_reply, "cmpl-", arrived_s)
