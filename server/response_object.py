"""The `response` object of `/v1/responses`: what was asked for, and how far it has come.

Keys stand in a fixed order, so that answers can be compared byte by byte.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mambad.engine.sampling_params import SamplingParams
from mambad.server.completion_run import Usage
from mambad.server.errors import ApiError
from mambad.server.reply import cache_object
from mambad.server.sampling import default_to
from mambad.server.schemas.responses import ResponsesRequest, TextFormat

ENDED = ("completed", "incomplete")
"""Statuses of responses that can be continued."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What is the same in a response from its beginning to its end.

    Attributes:
        id, model: of the response.
        asked: the settings that are sent back.
        created_s: seconds since the epoch.
    """

    id: str
    model: str
    asked: dict[str, Any]
    created_s: int = field(default_factory=lambda: int(time.time()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseEnd:
    """How a response has ended.

    Attributes:
        usage: its tokens.
        num_reasoning_tokens: generated tokens of thoughts.
        num_rewritten_tokens: tokens of the past that did not stand.
        error: what went wrong, if anything.
    """

    usage: Usage
    num_reasoning_tokens: int = 0
    num_rewritten_tokens: int = 0
    error: ApiError | None = None


def response_object(
    head: ResponseHead, status: str, output: Sequence[dict[str, Any]] = (), end: ResponseEnd | None = None
) -> dict[str, Any]:
    """Return a response as it is: one that has an end tells of its usage."""
    is_complete = status == "completed"
    body: dict[str, Any] = {
        "id": head.id,
        "object": "response",
        "created_at": head.created_s,
        "status": status,
        "completed_at": int(time.time()) if is_complete else None,
        "error": None if end is None or end.error is None else _error(end.error),
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "model": head.model,
        "output": list(output),
        **head.asked,
        "usage": None if end is None else _usage(end),
    }
    if end is not None:
        body["mambad"] = cache_object(end.usage, end.num_rewritten_tokens)
    return body


def asked_object(wire: ResponsesRequest, params: SamplingParams) -> dict[str, Any]:
    """Return the settings that a response sends back: as they were asked for, else as they counted."""
    reasoning, text = wire.reasoning, wire.text
    return {
        "background": bool(wire.background),
        "instructions": wire.instructions,
        "max_output_tokens": wire.max_output_tokens,
        "max_tool_calls": wire.max_tool_calls,
        "metadata": wire.metadata or {},
        "parallel_tool_calls": wire.parallel_tool_calls is not False,
        "previous_response_id": wire.previous_response_id,
        "prompt_cache_key": wire.prompt_cache_key,
        "reasoning": {
            "effort": None if reasoning is None else reasoning.effort,
            "summary": None if reasoning is None else reasoning.summary,
        },
        "safety_identifier": wire.safety_identifier,
        "service_tier": "default",
        "store": wire.store is not False,
        "temperature": params.temperature,
        "text": {"format": _format(None if text is None else text.format), "verbosity": "medium"},
        "tool_choice": default_to(wire.tool_choice, "auto"),
        "tools": [{**_unset_tool(), **tool.model_dump(exclude_none=True)} for tool in wire.tools or ()],
        "top_logprobs": wire.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "user": wire.user,
    }


def _unset_tool() -> dict[str, Any]:
    return {"type": "function", "name": "", "description": None, "parameters": None, "strict": None}


def _format(wire: TextFormat | None) -> dict[str, Any]:
    if wire is None:
        return {"type": "text"}
    return wire.model_dump(exclude_none=True, by_alias=True)


def _usage(end: ResponseEnd) -> dict[str, Any]:
    usage = end.usage
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.num_completion_tokens,
        "output_tokens_details": {"reasoning_tokens": end.num_reasoning_tokens},
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
    }


def _error(error: ApiError) -> dict[str, Any]:
    """Return an error in the few words that a response has for it."""
    code = "rate_limit_exceeded" if error.status == 429 else "server_error"
    return {"code": code, "message": error.message}
