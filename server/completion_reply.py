"""Deltas → what `/v1/completions` sends: chunks of a stream, or one body. Pure; makes dictionaries.

Keys stand in a fixed order, so that answers can be compared byte by byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mambad.server.choice import AlignedToken, Delta
from mambad.server.completion_run import Usage
from mambad.server.convert import CompletionPlan
from mambad.server.logprobs import completion_logprobs
from mambad.server.tokenizer import TextTokenizer

MISS_REASON = "disabled"  # there is no prefix cache


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What is the same in every chunk of an answer."""

    id: str
    created: int
    model: str
    fingerprint: str


class CompletionReply:
    """Builds one answer."""

    def __init__(self, plan: CompletionPlan, head: ReplyHead, text: TextTokenizer) -> None:
        self._plan = plan
        self._head = head
        self._text = text
        self._started: set[int] = set()
        self._wants_logprobs = plan.text_options.num_logprobs >= 0

    def says_something(self, delta: Delta) -> bool:
        """Whether a delta needs a chunk: a token may add nothing that can be shown yet."""
        has_ids = self._plan.return_token_ids and delta.token_ids
        return bool(delta.text or delta.aligned or has_ids or delta.finish_reason is not None)

    def chunk(self, index: int, delta: Delta, usage: Usage, is_last: bool) -> dict[str, Any]:
        """Return the chunk of one delta; `is_last` if no chunk follows it."""
        choice: dict[str, Any] = {
            "index": index,
            "text": delta.text,
            "logprobs": self._logprobs(delta.aligned),
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        self._add_token_ids(choice, index, delta.token_ids)
        chunk = self._start(has_fingerprint=is_last, choices=[choice])
        if self._plan.continuous_usage:
            chunk["usage"] = usage_object(usage)
        elif self._plan.include_usage:
            chunk["usage"] = None
        return self._end(chunk, usage) if is_last else chunk

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """Return the last chunk of a stream whose client asked for usage."""
        chunk = self._start(has_fingerprint=True, choices=[])
        chunk["usage"] = usage_object(usage)
        return self._end(chunk, usage)

    def body(self, choices: Sequence["WholeChoice"], usage: Usage) -> dict[str, Any]:
        """Return a whole answer."""
        objects = []
        for index, whole in enumerate(choices):
            choice: dict[str, Any] = {
                "index": index,
                "text": "".join(whole.texts),
                "finish_reason": whole.finish_reason,
                "logprobs": self._logprobs(whole.aligned),
                "stop_reason": whole.stop_reason,
            }
            self._add_token_ids(choice, index, whole.token_ids)
            objects.append(choice)
        body = self._start(has_fingerprint=True, choices=objects)
        body["usage"] = usage_object(usage)
        return self._end(body, usage)

    def _start(self, has_fingerprint: bool, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = self._head
        start: dict[str, Any] = {
            "id": head.id,
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
        }
        if has_fingerprint:
            start["system_fingerprint"] = head.fingerprint
        start["choices"] = choices
        return start

    def _end(self, answer: dict[str, Any], usage: Usage) -> dict[str, Any]:
        num_missed = usage.num_prompt_tokens - usage.num_cached_tokens
        cache = {"cached_tokens": usage.num_cached_tokens, "missed_tokens": {MISS_REASON: num_missed}}
        answer["mambad"] = {"cache": cache}
        return answer

    def _logprobs(self, aligned: Sequence[AlignedToken]) -> dict[str, Any] | None:
        if not self._wants_logprobs:
            return None
        return completion_logprobs(aligned, self._text, self._plan.tokens_as_ids)

    def _add_token_ids(self, choice: dict[str, Any], index: int, token_ids: Sequence[int]) -> None:
        """Add the ids of the new tokens, and once a choice those of its prompt."""
        if not self._plan.return_token_ids:
            return
        choice["token_ids"] = list(token_ids)
        if index not in self._started:
            self._started.add(index)
            choice["prompt_token_ids"] = list(self._plan.prompts[index // self._plan.num_choices].token_ids)


@dataclass(slots=True)
class WholeChoice:
    """All deltas of a choice, joined."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    aligned: list[AlignedToken] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def add(self, delta: Delta) -> None:
        """Take the next delta."""
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.aligned += delta.aligned
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's `usage`."""
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_completion_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
    }
