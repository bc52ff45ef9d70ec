"""`POST /v1/chat/completions`."""

import time
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mambad.server.chat_reply import ChatReply
from mambad.server.context import context_of
from mambad.server.engine_port import info_of
from mambad.server.offload import INLINE_BYTES
from mambad.server.openapi import json_operation
from mambad.server.reply import ReplyHead
from mambad.server.schemas.chat import ChatRequest
from mambad.server.schemas.chat_answers import ChatChunk, ChatObject
from mambad.server.serve_plan import serve_plan

router = APIRouter()
DESCRIPTION = json_operation(ChatRequest, answer=ChatObject, streams=True, chunk=ChatChunk)


@router.post("/v1/chat/completions", openapi_extra=DESCRIPTION)
async def create_chat_completion(request: Request) -> Response:
    """Continue a conversation."""
    context, arrived_s = context_of(request), time.monotonic()
    info = info_of(context.engine)
    async with context.bodies.read(request) as raw:
        # A template of the client's may take its full time: not on the event loop.
        is_slow = context.settings.trust_request_chat_template
        num_bytes = len(raw) + INLINE_BYTES if is_slow else len(raw)
        plan = await context.convert(request, num_bytes, partial(context.chats.chat, raw, info))

    def make_reply(head: ReplyHead) -> ChatReply:
        return ChatReply(plan.completion, plan.form, head, context.text)

    return await serve_plan(request, plan.completion, make_reply, "chatcmpl-", arrived_s)
