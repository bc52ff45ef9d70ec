"""`POST /v1/completions` on the wire. Ranges here are the ones that OpenAPI shows; null means the default.

Fields of several shapes (`prompt`, `stop`, `logit_bias`) are only described here and read in `convert`.
"""

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from mambad.server.schemas.common import WireModel

MAX_CHOICES_OF_PROMPT = 128
MAX_PROMPTS = 1024
MAX_STOPS = 4
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIASES = 1024
MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1

_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_STRINGS = {"type": "array", "items": {"type": "string"}}
Prompt = Annotated[
    Any,
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, _STRINGS, _TOKEN_IDS, {"type": "array", "items": _TOKEN_IDS}]}
    ),
]
Stop = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "string"}, _STRINGS | {"maxItems": MAX_STOPS}, {"type": "null"}]}),
]
_BIAS = {"type": "number", "minimum": -100, "maximum": 100}
LogitBias = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "object", "additionalProperties": _BIAS}, {"type": "null"}]})
]


class StreamOptions(WireModel):
    """What a stream carries besides text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class CompletionRequest(WireModel):
    """A request for completions. Defaults are applied by `convert`, so that null and absent are the same."""

    prompt: Prompt = None
    model: str | None = None
    max_tokens: int | None = Field(None, ge=0)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES_OF_PROMPT)
    best_of: int | None = None
    suffix: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: int | None = Field(None, ge=0)
    echo: bool | None = None
    stop: Stop = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: LogitBias = None
    seed: int | None = Field(None, ge=MIN_INT64, le=MAX_INT64)
    user: str | None = None
    response_format: dict[str, Any] | None = None
    top_k: int | None = Field(None, ge=-1, description="0 and -1 keep all tokens.")
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    min_tokens: int | None = Field(None, ge=0)
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = Field(None, max_length=MAX_STOP_TOKEN_IDS)
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    truncation_side: str | None = Field(None, pattern="^(left|right)$")
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: int | None = Field(None, ge=MIN_INT64, le=MAX_INT64)
