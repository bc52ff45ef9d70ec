"""Deltas → what `/v1/completions` sends: chunks of a stream, or one body. Pure; makes dictionaries.

Keys stand in a fixed order, so that answers can be compared byte by byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mambad.engine.outputs import TokenLogprobs
from mambad.server.choice import AlignedToken, Delta
from mambad.server.completion_run import Usage
from mambad.server.convert import CompletionPlan
from mambad.server.logprobs import completion_logprobs, prompt_logprobs
from mambad.server.reply import ReplyHead, cache_object, start_of, usage_object
from mambad.server.tokenizer import TextTokenizer

KIND = "text_completion"


class CompletionReply:
    """Builds one answer; see `Reply`."""

    def __init__(self, plan: CompletionPlan, head: ReplyHead, text: TextTokenizer) -> None:
        self._plan = plan
        self._head = head
        self._text = text
        self._started: set[int] = set()
        self._choices = [WholeChoice() for _ in range(len(plan.prompts) * plan.num_choices)]
        self._wants_logprobs = plan.text_options.num_logprobs >= 0

    def chunks(self, index: int, delta: Delta, usage: Usage, is_last: bool) -> list[dict[str, Any]]:
        """See Reply. A token may add nothing that can be shown yet."""
        has_ids = self._plan.return_token_ids and delta.token_ids
        if not (delta.text or delta.aligned or has_ids or delta.finish_reason is not None):
            return []
        choice: dict[str, Any] = {
            "index": index,
            "text": delta.text,
            "logprobs": self._logprobs(delta.aligned),
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        self._add_token_ids(choice, index, delta.token_ids)
        chunk = start_of(self._head, KIND, has_fingerprint=is_last, choices=[choice])
        if self._plan.continuous_usage:
            chunk["usage"] = usage_object(usage)
        elif self._plan.include_usage:
            chunk["usage"] = None
        if is_last:
            chunk["mambad"] = cache_object(usage)
        return [chunk]

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """See Reply."""
        chunk = start_of(self._head, KIND, has_fingerprint=True, choices=[])
        return chunk | {"usage": usage_object(usage), "mambad": cache_object(usage)}

    def add(self, index: int, delta: Delta) -> None:
        """See Reply."""
        self._choices[index].add(delta)

    def ends_in_calls(self, index: int) -> bool:
        """See Reply. There are no tools here."""
        return False

    def body(self, usage: Usage) -> dict[str, Any]:
        """See Reply."""
        objects = []
        for index, whole in enumerate(self._choices):
            choice: dict[str, Any] = {
                "index": index,
                "text": "".join(whole.texts),
                "finish_reason": whole.finish_reason,
                "logprobs": self._logprobs(whole.aligned),
                "stop_reason": whole.stop_reason,
            }
            num_scores = self._plan.text_options.num_prompt_logprobs
            if num_scores >= 0:
                choice["prompt_logprobs"] = prompt_logprobs(whole.prompt_logprobs, num_scores, self._text)
            self._add_token_ids(choice, index, whole.token_ids)
            objects.append(choice)
        body = start_of(self._head, KIND, has_fingerprint=True, choices=objects)
        return body | {"usage": usage_object(usage), "mambad": cache_object(usage)}

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
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def add(self, delta: Delta) -> None:
        """Take the next delta."""
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.aligned += delta.aligned
        self.prompt_logprobs += delta.prompt_logprobs
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
