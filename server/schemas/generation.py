"""What requests for generated text share on the wire, whatever the endpoint.

Ranges here are the ones that OpenAPI shows; null means the default. Fields of several shapes (`stop`,
`logit_bias`) are only described here and read in `sampling`.
"""

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from mambad.server.schemas.common import WireModel
from mambad.server.schemas.structured import ResponseFormat, StructuredOutputs

MAX_CHOICES_OF_PROMPT = 128
MAX_STOPS = 4
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIASES = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 256
MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1

_STRINGS = {"type": "array", "items": {"type": "string"}}
Stop = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "string"}, _STRINGS | {"maxItems": MAX_STOPS}, {"type": "null"}]}),
]
_BIAS = {"type": "number", "minimum": -100, "maximum": 100}
LogitBias = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "object", "additionalProperties": _BIAS}, {"type": "null"}]})
]

BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARS)]


class StreamOptions(WireModel):
    """What a stream carries besides text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationRequest(WireModel):
    """Fields of every generating endpoint. Defaults come later: null and absent are the same."""

    model: str | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES_OF_PROMPT)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: LogitBias = None
    seed: int | None = Field(None, ge=MIN_INT64, le=MAX_INT64)
    user: str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    top_k: int | None = Field(None, ge=-1, description="0 and -1 keep all tokens.")
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    min_tokens: int | None = Field(None, ge=0)
    ignore_eos: bool | None = None
    allowed_token_ids: list[int] | None = Field(None, min_length=1)
    bad_words: list[BadWord] | None = Field(None, max_length=MAX_BAD_WORDS)
    stop_token_ids: list[int] | None = Field(None, max_length=MAX_STOP_TOKEN_IDS)
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    truncation_side: str | None = Field(None, pattern="^(left|right)$")
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: int | None = Field(None, ge=MIN_INT64, le=MAX_INT64)
    request_id: str | None = Field(
        None, pattern=r"^[A-Za-z0-9._:+=-]{1,128}$", description="The answer's id ends in this."
    )
    cache_salt: str | None = Field(
        None,
        pattern=r"^[^@/\\\x00]{1,128}$",
        description="Prompts are only taken for the same under the same salt.",
    )
