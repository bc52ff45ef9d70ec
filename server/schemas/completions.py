"""`POST /v1/completions` on the wire. `prompt` is only described here and read in `prompts`."""

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from mambad.server.schemas.generation import GenerationRequest

MAX_PROMPTS = 1024
MAX_PROMPT_SCORES = 2_000_000
"""Log-probabilities of prompt tokens in an answer: some hundred megabytes while it is made."""

_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_STRINGS = {"type": "array", "items": {"type": "string"}}
Prompt = Annotated[
    Any,
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, _STRINGS, _TOKEN_IDS, {"type": "array", "items": _TOKEN_IDS}]}
    ),
]


class CompletionRequest(GenerationRequest):
    """A request for completions. Defaults are applied by `convert`, so that null and absent are the same."""

    prompt: Prompt = None
    max_tokens: int | None = Field(None, ge=0)
    best_of: int | None = None
    suffix: str | None = None
    logprobs: int | None = Field(None, ge=0)
    prompt_logprobs: int | None = Field(None, ge=0, description="Not with `stream`.")
    echo: bool | None = None
    add_special_tokens: bool | None = None
