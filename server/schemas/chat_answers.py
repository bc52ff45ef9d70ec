"""What `/v1/chat/completions` sends, on the wire: for `/openapi.json` only."""

from typing import Any, Literal

from pydantic import Field

from mambad.server.schemas.answers import Answer, UsageObject

FinishReason = Literal["stop", "length", "tool_calls"]


class CompletionTokensDetails(Answer):
    """Of the generated tokens, those of thoughts."""

    reasoning_tokens: int = Field(ge=0)


class ChatUsage(UsageObject):
    """Tokens of a whole answer; the details stand where thoughts are split off."""

    completion_tokens_details: CompletionTokensDetails | None = None


class TopLogprob(Answer):
    """A token that might have stood at a position; `bytes` is null where it shows no text."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """A token of the answer."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    """An entry for every token, those of calls and thoughts too."""

    content: list[TokenLogprob]
    refusal: None


class CallFunction(Answer):
    """What a call calls; `arguments` is JSON as the model wrote it."""

    name: str
    arguments: str


class Call(Answer):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CallFunction


class Message(Answer):
    """The assistant's message; content is null if it only thinks or calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None


class ChatChoiceObject(Answer):
    """A choice of a whole answer."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: list[int] | None = None


class ChatObject(Answer):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoiceObject]
    usage: ChatUsage
    prompt_token_ids: list[int] | None = None
    mambad: dict[str, Any]


class CallFunctionDelta(Answer):
    """Part of a call; the name stands in a call's first part only."""

    name: str | None = None
    arguments: str


class CallDelta(Answer):
    """Part of the call at `index`; id and type stand in its first part only."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: CallFunctionDelta


class MessageDelta(Answer):
    """What an event adds to a message; nothing in the last one."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChatChunkChoice(Answer):
    """What an event adds to a choice; `finish_reason` is set in its last one."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatChunk(Answer):
    """An event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | None = None
    usage: ChatUsage | None = None
    mambad: dict[str, Any] | None = None
