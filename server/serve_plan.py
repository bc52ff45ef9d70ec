"""A plan → its HTTP answer: submits the request, and streams or returns whole. For every generating endpoint.

What can be wrong with a request is known before a response header is sent; a client that goes ends the work.
"""

import time
import uuid
from collections.abc import Callable
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from mambad.server.completion_answer import CompletionAnswer
from mambad.server.completion_run import CompletionRun
from mambad.server.context import context_of
from mambad.server.convert import CompletionPlan
from mambad.server.disconnect import disconnected, run_while
from mambad.server.engine_port import info_of, requested_rank
from mambad.server.reply import Reply, ReplyHead
from mambad.server.request_record import Generation, prompt_texts, record_of
from mambad.server.run_reader import RunReader
from mambad.server.sse import EventStream, Write

MakeReply = Callable[[ReplyHead], Reply]


class Answer(Protocol):
    """A submitted request on its way to the client."""

    @property
    def reader(self) -> RunReader:
        """What reads the request's streams."""
        ...

    async def whole(self) -> Response:
        """Return the answer in one piece."""
        ...

    async def stream(self, write: Write) -> None:
        """Write the answer event by event; failures are events too."""
        ...

    def close(self) -> None:
        """Give the request up if it has not ended."""
        ...


async def serve_plan(
    request: Request, plan: CompletionPlan, make_reply: MakeReply, prefix: str, arrived_s: float
) -> Response:
    """Answer a request for completions or a chat, whose body has been read.

    Args:
        request: the request; its headers may name a rank.
        plan: what it asks for.
        make_reply: makes what builds the answer.
        prefix: of the answer's id.
        arrived_s: monotonic time of the request's arrival.

    Raises:
        ApiError, EngineError: it can't be answered.
    """
    context = context_of(request)
    response_id = f"{prefix}{plan.request_id or uuid.uuid4().hex}"
    reader = await submit_plan(request, plan, response_id, arrived_s)
    head = ReplyHead(response_id, int(time.time()), plan.model, context.fingerprint(info_of(context.engine)))
    return await deliver(request, CompletionAnswer(plan, reader, make_reply(head)), plan.stream)


async def submit_plan(
    request: Request, plan: CompletionPlan, response_id: str, arrived_s: float
) -> RunReader:
    """Submit a request; from here on its streams are the reader's to close.

    Args:
        request, plan, arrived_s: see `serve_plan`.
        response_id: of the answer; unique unless the client named the request.

    Raises:
        ApiError, EngineError: it can't be served, or not now.
    """
    context = context_of(request)
    await context.grammars.check(plan.params.grammar, info_of(context.engine).has_grammars)
    # Two requests may have the same id, but not in the engine.
    engine_id = response_id if plan.request_id is None else f"{response_id}/{uuid.uuid4().hex}"
    streams = context.engine.submit(list(plan.submissions(engine_id)), requested_rank(request.headers))
    run = CompletionRun(plan, streams, context.text, context.metrics, arrived_s, context.background)
    record = record_of(request.scope)
    if record is not None:
        prompts = prompt_texts(plan.prompts, context.text) if context.settings.log_prompts else ()
        record.generation = Generation(plan, run, response_id, prompts)
    spent_s = time.monotonic() - arrived_s
    return RunReader(run, context.settings.request_timeout_s, context.metrics, spent_s)


async def deliver(request: Request, answer: Answer, is_stream: bool) -> Response:
    """Return the HTTP answer of what has been submitted.

    Raises:
        ApiError, EngineError: it failed before the answer began.
    """
    settings, reader = context_of(request).settings, answer.reader
    if not is_stream:
        try:
            return await run_while(answer.whole(), disconnected(request.receive))
        finally:
            answer.close()
    waiting = reader.admitted()
    try:
        await (waiting if reader.has_begun else run_while(waiting, disconnected(request.receive)))
    except BaseException:
        answer.close()
        raise
    return EventStream(answer.stream, answer.close, settings.sse_keep_alive_s, settings.stall_timeout_s)
