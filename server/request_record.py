"""What one request leaves behind: gathered on its way, written as a log line and as a span when it is over.

The outermost layer (`access_log`) makes the record and puts it into the request's scope; the others find it
there, or find none where nobody asked for one.
"""

import logging
import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from mambad.server.choice import PromptText
from mambad.server.completion_run import CompletionRun
from mambad.server.convert import CompletionPlan
from mambad.server.errors import ApiError
from mambad.server.tokenizer import TextTokenizer

CUT_OFF = 499  # what nginx calls a client that left before the answer began
KEY = "record"
MAX_PROMPT_TOKENS, MAX_PROMPT_CHARS = 4096, 16384  # of a prompt that is recorded


class Span(Protocol):
    """A request's span while it is open."""

    @property
    def trace_id(self) -> str | None:
        """Its trace's id, 32 hexadecimal digits; None where spans are not really made."""
        ...

    def end(self, record: "RequestRecord") -> None:
        """Close it with what is known now."""
        ...


@dataclass(slots=True)
class Generation:
    """The part of a record that only a request for text has.

    Attributes:
        plan: what was asked for.
        run: its streams; what became of them is in `run.outcome`.
        response_id: of the answer.
        prompts: their texts, if they are to be recorded.
        is_detached: the text is made after the answer has gone out, as one to be asked for later.
    """

    plan: CompletionPlan
    run: CompletionRun
    response_id: str
    prompts: tuple[str, ...] = ()
    is_detached: bool = False

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the request's arrival to its first token, if there was one."""
        first_s = self.run.outcome.first_token_s
        return None if first_s is None else first_s - self.run.arrived_s

    def fields(self) -> dict[str, object]:
        """Return what a log line says of it."""
        usage, outcome = self.run.usage(), self.run.outcome
        return {
            "model": self.plan.model,
            "engine": self.run.rank,
            "prompt_tokens": usage.num_prompt_tokens,
            "cached_tokens": usage.num_cached_tokens,
            "completion_tokens": usage.num_completion_tokens,
            "queue_s": _rounded(outcome.queue_s),
            "ttft_s": _rounded(self.ttft_s),
            "finish_reason": ",".join(dict.fromkeys(outcome.reasons())),
            "prompt": "\n".join(self.prompts) or None,
        }


@dataclass(slots=True)
class RequestRecord:
    """One request.

    Attributes:
        method, path: as it came.
        span: None without traces.
        trace_id: of the span, or of the caller's when there is none here.
        request_id: what the client is told as `X-Request-Id`.
        status: of the answer.
        error: what the client was told went wrong before the answer began.
        generation: None where nothing was generated.
        arrived_s, ended_s: monotonic times.
    """

    method: str
    path: str
    span: Span | None = None
    trace_id: str | None = None
    request_id: str | None = None
    status: int = CUT_OFF
    error: ApiError | None = None
    generation: Generation | None = None
    arrived_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0

    @property
    def failure(self) -> ApiError | None:
        """What the client was told went wrong, before the answer began or within it."""
        if self.error is None and self.generation is not None:
            return self.generation.run.outcome.error
        return self.error

    @property
    def is_settled(self) -> bool:
        """Whether nothing more will be known of it."""
        generation = self.generation
        if generation is None or generation.run.is_settled:
            return True
        return not (generation.is_detached or generation.run.is_closed)

    async def settled(self) -> None:
        """Wait until it is settled; what is made after the answer counts as part of the request."""
        assert self.generation is not None
        await self.generation.run.settled()
        if self.generation.is_detached:
            self.ended_s = time.monotonic()

    def fields(self) -> dict[str, object]:
        """Return what a log line says of it, by field."""
        failure = self.failure
        fields: dict[str, object] = {
            "request_id": self.request_id,
            "trace_id": self.trace_id,
            "status": self.status,
            "duration_s": _rounded(self.ended_s - self.arrived_s),
            "error_code": None if failure is None else failure.code,
        }
        return fields if self.generation is None else fields | self.generation.fields()


CURRENT: ContextVar[RequestRecord | None] = ContextVar("mambad.request", default=None)
"""The record of the request that the running task belongs to."""


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


def record_of(scope: Any) -> RequestRecord | None:
    """Return the record of a request, if one is kept."""
    record: RequestRecord | None = scope.get("state", {}).get(KEY)
    return record


def prompt_texts(prompts: Sequence[PromptText], text: TextTokenizer) -> tuple[str, ...]:
    """Return the texts of prompts, as the model reads them, each up to a length."""
    texts = (text.decode(prompt.token_ids[:MAX_PROMPT_TOKENS])[:MAX_PROMPT_CHARS] for prompt in prompts)
    return tuple(texts)


def add_request_fields(line: logging.LogRecord) -> bool:
    """Give a log line of a request's task that request's ids, unless it has its own; a logging filter."""
    record = CURRENT.get()
    if record is not None:
        for name in ("request_id", "trace_id"):
            if line.__dict__.get(name) is None:
                line.__dict__[name] = getattr(record, name)
    return True
