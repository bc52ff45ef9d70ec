"""What the server sends, on the wire: for `/openapi.json` only, answers are made as plain dictionaries.

A field that is not required is left out where it has nothing to say.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """An object; clients are to ignore fields that they don't know."""

    model_config = ConfigDict(extra="allow", strict=True)


class ErrorDetail(Answer):
    """What went wrong, for people (`message`) and programs (`code`)."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Answer):
    """Every answer that is not 2xx, and the last event but one of a stream that failed."""

    error: ErrorDetail


class PromptTokensDetails(Answer):
    """Of the prompt's tokens, those that were not computed again."""

    cached_tokens: int = Field(ge=0)


class UsageObject(Answer):
    """Tokens of a whole answer; a prompt counts once, however many choices it has."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=0)
    prompt_tokens_details: PromptTokensDetails


class CompletionLogprobs(Answer):
    """Four lists of one length: an entry for each token whose text is shown."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(Answer):
    """One token at a position of a prompt."""

    logprob: float
    rank: int | None
    decoded_token: str


class CompletionChoice(Answer):
    """A choice of a whole answer."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"]
    logprobs: CompletionLogprobs | None
    stop_reason: str | int | None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionObject(Answer):
    """A whole answer."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageObject
    mambad: dict[str, Any]


class CompletionChunkChoice(Answer):
    """What an event adds to a choice; `finish_reason` is set in its last one."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionChunk(Answer):
    """An event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    system_fingerprint: str | None = None
    usage: UsageObject | None = None
    mambad: dict[str, Any] | None = None


class ModelCard(Answer):
    """A name under which the model is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    permission: list[Any]


class ModelList(Answer):
    """All names."""

    object: Literal["list"]
    data: list[ModelCard]


class TokenizeAnswer(Answer):
    """Ids of a text; `token_strs` only when asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(Answer):
    """The text of ids."""

    prompt: str


class TokenizerInfo(Answer):
    """Special tokens, null where the model has none."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None


class Health(Answer):
    """How the server is; `progress` only while it loads."""

    status: str
    reason: str
    running: int = Field(ge=0)
    since_s: float = Field(ge=0)
    progress: float | None = None


class VersionAnswer(Answer):
    """The version."""

    version: str


class LoadAnswer(Answer):
    """Requests that are being worked on or wait."""

    server_load: int = Field(ge=0)


class StateReport(Answer):
    """What every slot does; see `docs/`."""

    object: Literal["mambad.state"]
    schema_version: int
    time: float
    engines: list[dict[str, Any]]
