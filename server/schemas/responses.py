"""`POST /v1/responses` on the wire.

`input` is read in `response_input`, `tool_choice` in `response_tools`; what is only known by name, and
refused, stands in `REFUSED`.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from mambad.server.schemas.chat import MAX_TOOLS, NAME_PATTERN
from mambad.server.schemas.common import WireModel
from mambad.server.schemas.generation import GenerationRequest
from mambad.server.schemas.response_items import Input
from mambad.server.schemas.structured import ConstraintModel

REFUSED: dict[str, tuple[Any, ...]] = {
    "access_programs": (),
    "background_options": (),
    "context_management": (),
    "conversation": (),
    "image": (),
    "moderation": (),
    "n": (1,),
    "prompt": (),
    "request_id": (),
    "response_format": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "truncate_prompt_tokens": (),
    "truncation": ("disabled",),
    "truncation_side": (),
}
"""Field → values that ask for nothing. Null always does."""

LOGPROBS = "message.output_text.logprobs"
Includable = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
_NAMED = {
    "type": "object",
    "required": ["type", "name"],
    "properties": {"type": {"const": "function"}, "name": {"type": "string"}},
}
_ALLOWED = {
    "type": "object",
    "required": ["type", "mode", "tools"],
    "properties": {
        "type": {"const": "allowed_tools"},
        "mode": {"type": "string", "enum": ["auto", "required"]},
        "tools": {"type": "array", "items": _NAMED, "minItems": 1},
    },
}
_CHOICES = {"type": "string", "enum": ["none", "auto", "required"]}
ResponseToolChoice = Annotated[Any, WithJsonSchema({"anyOf": [_CHOICES, _NAMED, _ALLOWED, {"type": "null"}]})]
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class ReasoningConfig(WireModel):
    """How long to think. Thoughts are shown as they are, never as a summary."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto"] | None = Field(None, description="`auto` makes none.")
    generate_summary: Literal["auto"] | None = None


class TextFormat(ConstraintModel):
    """`json_object` and `json_schema` limit the answer, `text` does not."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]{1,64}$")
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = Field(None, description="The answer always keeps to the schema.")


class TextConfig(WireModel):
    """What the text is to be like."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class FunctionTool(WireModel):
    """A function that the model may call; `parameters` is a JSON schema."""

    type: Literal["function"]
    name: str = Field(pattern=NAME_PATTERN)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponsesRequest(GenerationRequest):
    """A request for the next part of a conversation. Null and absent are the same."""

    input: Input = None
    instructions: str | None = Field(None, description="Count for this response only.")
    max_output_tokens: int | None = Field(None, ge=1)
    previous_response_id: str | None = None
    store: bool | None = None
    background: bool | None = Field(None, description="Answer at once; excludes `stream`.")
    include: list[Includable] | None = None
    tools: list[FunctionTool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: ResponseToolChoice = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[MetadataKey, MetadataValue] | None = Field(None, max_length=16)
    chat_template_kwargs: dict[str, Any] | None = None
    # Refused, unless they ask for nothing.
    access_programs: dict[str, Any] | None = None
    background_options: dict[str, Any] | None = None
    context_management: list[Any] | None = None
    conversation: Any = None
    image: dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    # Accepted, and without effect on the answer. There are no built-in tools whose calls could be counted.
    max_tool_calls: int | None = Field(None, ge=1)
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
