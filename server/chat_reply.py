"""Deltas → what `/v1/chat/completions` sends: chunks of a stream, or one body.

Keys stand in a fixed order, so that answers can be compared byte by byte. A stream's chunks say one thing
each: the role, a part of the message, or the end.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mambad.server.chat_choice import TOOL_CALLS, ChatChoice, MessageFormat
from mambad.server.choice import AlignedToken, Delta
from mambad.server.completion_run import Usage
from mambad.server.convert import CompletionPlan
from mambad.server.logprobs import chat_logprobs
from mambad.server.reply import ReplyHead, cache_object, start_of, usage_object
from mambad.server.tokenizer import TextTokenizer
from mambad.server.tool_parsers.base import Piece

WHOLE, CHUNK = "chat.completion", "chat.completion.chunk"
TEXT_KEYS = {"content": "content", "reasoning": "reasoning_content"}


@dataclass(slots=True)
class _State:
    """What is known of one choice."""

    choice: ChatChoice
    has_begun: bool = False
    call_index: int = -1
    aligned: list[AlignedToken] = field(default_factory=list)  # not sent yet
    token_ids: list[int] = field(default_factory=list)  # not sent yet
    pieces: list[Piece] = field(default_factory=list)  # of a whole answer
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def take(self, delta: Delta) -> list[Piece]:
        """Take the next delta; return what it adds to the message."""
        self.aligned += delta.aligned
        self.token_ids += delta.token_ids
        pieces = self.choice.feed(delta)
        self.finish_reason, self.stop_reason = self.choice.finish_reason(delta), delta.stop_reason
        return pieces


class ChatReply:
    """Builds one answer; see `Reply`."""

    def __init__(
        self, plan: CompletionPlan, form: MessageFormat, head: ReplyHead, text: TextTokenizer
    ) -> None:
        self._plan = plan
        self._form = form
        self._head = head
        self._text = text
        self._states = [_State(ChatChoice(form)) for _ in range(plan.num_choices)]
        self._has_begun = False

    def chunks(self, index: int, delta: Delta, usage: Usage, is_last: bool) -> list[dict[str, Any]]:
        """See Reply."""
        state = self._states[index]
        pieces = state.take(delta)
        parts = list(self._opening(state, delta))
        num_silent = min(len(parts), 1)
        parts += [self._part(state, piece) for piece in pieces]
        if delta.finish_reason is not None:
            parts.append({})
        last = len(parts) - 1
        return [
            self._chunk(index, part, usage, is_silent=place < num_silent, is_last=is_last and place == last)
            for place, part in enumerate(parts)
        ]

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """See Reply."""
        chunk = start_of(self._head, CHUNK, has_fingerprint=True, choices=[])
        return chunk | {"usage": self._usage(usage), "mambad": cache_object(usage)}

    def add(self, index: int, delta: Delta) -> None:
        """See Reply."""
        state = self._states[index]
        state.pieces += state.take(delta)

    def ends_in_calls(self, index: int) -> bool:
        """See Reply."""
        return self._states[index].finish_reason == TOOL_CALLS

    def body(self, usage: Usage) -> dict[str, Any]:
        """See Reply."""
        choices = []
        for index, state in enumerate(self._states):
            choice: dict[str, Any] = {
                "index": index,
                "message": self._message(state.pieces),
                "logprobs": self._logprobs(state),
                "finish_reason": state.finish_reason,
                "stop_reason": state.stop_reason,
            }
            if self._plan.return_token_ids:
                choice["token_ids"] = state.token_ids
            choices.append(choice)
        body = start_of(self._head, WHOLE, has_fingerprint=True, choices=choices)
        body["usage"] = self._usage(usage)
        self._add_prompt_ids(body)
        return body | {"mambad": cache_object(usage)}

    def _opening(self, state: _State, delta: Delta) -> Iterator[dict[str, Any]]:
        """Yield what comes before the first part of a message: not before there is a token."""
        if state.has_begun or not (delta.token_ids or delta.finish_reason):
            return
        state.has_begun = True
        yield {"role": "assistant", "content": ""}
        if self._form.prefix:
            yield {"content": self._form.prefix}

    def _part(self, state: _State, piece: Piece) -> dict[str, Any]:
        """Return a chunk's `delta`; a call's id, type and name stand in its first one only."""
        if piece.kind in TEXT_KEYS:
            return {TEXT_KEYS[piece.kind]: piece.text}
        if piece.kind == "call":
            state.call_index += 1
            call = {"index": state.call_index, **_call(piece.text)}
        else:
            call = {"index": state.call_index, "function": {"arguments": piece.text}}
        return {"tool_calls": [call]}

    def _chunk(
        self, index: int, part: dict[str, Any], usage: Usage, is_silent: bool, is_last: bool
    ) -> dict[str, Any]:
        """Return a chunk; a silent one tells of no token."""
        state = self._states[index]
        is_end = not part
        choice: dict[str, Any] = {
            "index": index,
            "delta": part,
            "logprobs": None if is_silent else self._logprobs(state),
            "finish_reason": state.finish_reason if is_end else None,
        }
        if is_end and state.stop_reason is not None:
            choice["stop_reason"] = state.stop_reason
        if self._plan.return_token_ids and not is_silent:
            choice["token_ids"], state.token_ids = state.token_ids, []
        chunk = start_of(self._head, CHUNK, has_fingerprint=is_last, choices=[choice])
        if not self._has_begun:
            self._has_begun = True
            self._add_prompt_ids(chunk)
        if self._plan.continuous_usage:
            chunk["usage"] = self._usage(usage)
        elif self._plan.include_usage:
            chunk["usage"] = None
        if is_last:
            chunk["mambad"] = cache_object(usage)
        return chunk

    def _message(self, pieces: list[Piece]) -> dict[str, Any]:
        """Return the message that a stream's parts add up to."""
        texts: dict[str, list[str]] = {"content": [self._form.prefix], "reasoning": []}
        calls: list[dict[str, Any]] = []
        for piece in pieces:
            if piece.kind in texts:
                texts[piece.kind].append(piece.text)
            elif piece.kind == "call":
                calls.append(_call(piece.text))
            else:
                calls[-1]["function"]["arguments"] += piece.text
        content, thought = "".join(texts["content"]), "".join(texts["reasoning"])
        is_silent = not content and (calls or thought)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if is_silent else content,
            "refusal": None,
        }
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        return message

    def _logprobs(self, state: _State) -> dict[str, Any] | None:
        """Return the log-probabilities of the tokens that were not told yet."""
        options = self._plan.text_options
        if options.num_logprobs < 0:
            return None
        aligned, state.aligned = state.aligned, []
        hidden = self._text.special_ids if options.skip_special_tokens else frozenset()
        return chat_logprobs(aligned, self._text, hidden - options.visible_ids, self._plan.tokens_as_ids)

    def _usage(self, usage: Usage) -> dict[str, Any]:
        found = usage_object(usage)
        if self._form.has_thoughts:
            num_tokens = sum(state.choice.num_reasoning_tokens for state in self._states)
            found["completion_tokens_details"] = {"reasoning_tokens": num_tokens}
        return found

    def _add_prompt_ids(self, answer: dict[str, Any]) -> None:
        if self._plan.return_token_ids:
            answer["prompt_token_ids"] = list(self._plan.prompts[0].token_ids)


def _call(name: str) -> dict[str, Any]:
    """Return a new call without arguments."""
    call_id = f"call_{uuid.uuid4().hex[:24]}"
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
