"""`POST /v1/completions`."""

import time
import uuid
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mambad.server.completion_answer import CompletionAnswer
from mambad.server.completion_reply import CompletionReply, ReplyHead
from mambad.server.completion_run import CompletionRun
from mambad.server.context import AppContext, context_of
from mambad.server.convert import CompletionPlan
from mambad.server.disconnect import disconnected, run_while
from mambad.server.engine_port import info_of, requested_rank
from mambad.server.openapi import json_operation
from mambad.server.schemas.completions import CompletionRequest
from mambad.server.sse import EventStream

router = APIRouter()


@router.post("/v1/completions", openapi_extra=json_operation(CompletionRequest, streams=True))
async def create_completion(request: Request) -> Response:
    """Continue one or more prompts."""
    context, arrived_s = context_of(request), time.monotonic()
    info = info_of(context.engine)
    async with context.bodies.read(request) as raw:
        plan = await context.convert(request, len(raw), partial(context.converter.completion, raw, info))
    answer = _start(context, plan, arrived_s, requested_rank(request.headers))
    if not plan.stream:
        try:
            return await run_while(answer.whole(), disconnected(request.receive))
        finally:
            answer.close()
    waiting = answer.admitted()
    try:
        await (waiting if answer.has_begun else run_while(waiting, disconnected(request.receive)))
    except BaseException:
        answer.close()
        raise
    settings = context.settings
    return EventStream(answer.stream, answer.close, settings.sse_keep_alive_s, settings.stall_timeout_s)


def _start(context: AppContext, plan: CompletionPlan, arrived_s: float, rank: int | None) -> CompletionAnswer:
    """Submit a request; from here on its streams are the answer's to close."""
    response_id = f"cmpl-{uuid.uuid4().hex}"
    head = ReplyHead(response_id, int(time.time()), plan.model, context.fingerprint(info_of(context.engine)))
    reply = CompletionReply(plan, head, context.text)
    streams = context.engine.submit(list(plan.submissions(response_id)), rank)
    run = CompletionRun(plan, streams, context.text, context.metrics, arrived_s, context.background)
    timeout_s = context.settings.request_timeout_s
    if timeout_s is not None:
        timeout_s = max(arrived_s + timeout_s - time.monotonic(), 0.0)
    return CompletionAnswer(plan, run, reply, timeout_s, context.metrics)
