"""What turns deltas into the JSON of an answer: one implementation an endpoint, and what they share.

Makes dictionaries whose keys stand in a fixed order, so that answers can be compared byte by byte.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from mambad.server.choice import Delta
from mambad.server.completion_run import Usage

MISS_REASON = "disabled"  # there is no prefix cache
REWRITTEN = "history_rewritten"


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What is the same in every chunk of an answer."""

    id: str
    created: int
    model: str
    fingerprint: str


class Reply(Protocol):
    """Builds one answer: either its chunks, or a body of everything that was added."""

    def chunks(self, index: int, delta: Delta, usage: Usage, is_last: bool) -> list[dict[str, Any]]:
        """Return what a delta adds to a stream, possibly nothing.

        Args:
            index: of the choice.
            delta: of that choice, in order.
            usage: tokens so far.
            is_last: no chunk follows.
        """
        ...

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """Return the last chunk of a stream whose client asked for usage."""
        ...

    def add(self, index: int, delta: Delta) -> None:
        """Take the next delta of a choice."""
        ...

    def ends_in_calls(self, index: int) -> bool:
        """Return whether a choice has ended for the reason `tool_calls`."""
        ...

    def body(self, usage: Usage) -> dict[str, Any]:
        """Return the whole answer."""
        ...


def start_of(head: ReplyHead, kind: str, has_fingerprint: bool, choices: list[Any]) -> dict[str, Any]:
    """Return the beginning of a chunk or body, whose `object` is `kind`."""
    start: dict[str, Any] = {"id": head.id, "object": kind, "created": head.created, "model": head.model}
    if has_fingerprint:
        start["system_fingerprint"] = head.fingerprint
    start["choices"] = choices
    return start


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's `usage`."""
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_completion_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
    }


def cache_object(usage: Usage, num_rewritten_tokens: int = 0) -> dict[str, Any]:
    """Return what the last chunk or the body tells of the cache.

    Args:
        usage: tokens of the answer.
        num_rewritten_tokens: so many tokens of a stored conversation did not stand in the new prompt.
    """
    num_missed = usage.num_prompt_tokens - usage.num_cached_tokens
    num_rewritten = min(num_missed, num_rewritten_tokens)
    missed = {REWRITTEN: num_rewritten} if num_rewritten else {}
    missed[MISS_REASON] = num_missed - num_rewritten
    return {"cache": {"cached_tokens": usage.num_cached_tokens, "missed_tokens": missed}}
