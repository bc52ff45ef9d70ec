"""What `/v1/responses` sends, on the wire: for `/openapi.json` only."""

from typing import Annotated, Any, Literal

from pydantic import Field

from mambad.server.schemas.answers import Answer
from mambad.server.schemas.chat_answers import CompletionTokensDetails

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(Answer):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[dict[str, Any]]


class OutputMessage(Answer):
    """A message of the model."""

    type: Literal["message"]
    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class OutputCall(Answer):
    """A call of a function; `arguments` is JSON as the model wrote it."""

    type: Literal["function_call"]
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class ReasoningText(Answer):
    """The text of a thought."""

    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(Answer):
    """A thought."""

    type: Literal["reasoning"]
    id: str
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]


OutputItem = Annotated[OutputMessage | OutputCall | OutputReasoning, Field(discriminator="type")]


class InputTokensDetails(Answer):
    """Of the prompt's tokens, those that were not computed again."""

    cached_tokens: int = Field(ge=0)
    cache_write_tokens: int = Field(ge=0)


class ResponseUsage(Answer):
    """Tokens of a response."""

    input_tokens: int = Field(ge=0)
    input_tokens_details: InputTokensDetails
    output_tokens: int = Field(ge=0)
    output_tokens_details: CompletionTokensDetails
    total_tokens: int = Field(ge=0)


class ResponseErrorDetail(Answer):
    """Why a response has failed."""

    code: str
    message: str


class IncompleteDetails(Answer):
    """Why a response is not complete."""

    reason: Literal["max_output_tokens"]


class ResponseObject(Answer):
    """A response, with the settings that it was asked for; `usage` and `mambad` once it has ended."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    completed_at: int | None
    error: ResponseErrorDetail | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    mambad: dict[str, Any] | None = None


class ResponseEvent(Answer):
    """An event of a stream; the other fields depend on its type."""

    type: str
    sequence_number: int = Field(ge=0)
    response: ResponseObject | None = None
    output_index: int | None = None
    item_id: str | None = None
    content_index: int | None = None
    delta: str | None = None


class DeletedResponse(Answer):
    """What is left of a response."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]
