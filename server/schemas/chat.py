"""`POST /v1/chat/completions` on the wire.

Which fields a message needs depends on its role, and is checked in `chat_messages`; `tool_choice` has several
shapes and is read in `chat_tools`.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from mambad.server.schemas.common import WireModel
from mambad.server.schemas.generation import GenerationRequest

MAX_MESSAGES = 10_000
MAX_TOOLS = 256
NAME_PATTERN = r"^[a-zA-Z0-9_.:-]{1,128}$"

Role = Literal["developer", "system", "user", "assistant", "tool", "function"]
TEXTS = ("text", "refusal")
"""Types of parts, each with its text in the field of that name."""

_PARTS = [
    {
        "type": "object",
        "required": ["type", name],
        "properties": {"type": {"const": name}, name: {"type": "string"}},
    }
    for name in TEXTS
]
Content = Annotated[
    Any,
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": _PARTS}}, {"type": "null"}]}
    ),
]
_FUNCTION_CHOICE = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}},
        },
    },
}
_ALLOWED_CHOICE = {
    "type": "object",
    "required": ["type", "allowed_tools"],
    "properties": {"type": {"const": "allowed_tools"}, "allowed_tools": {"type": "object"}},
}
ToolChoice = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "enum": ["none", "auto", "required"]},
                _FUNCTION_CHOICE,
                _ALLOWED_CHOICE,
                {"type": "null"},
            ]
        }
    ),
]


class FunctionCall(WireModel):
    """A call as the model made it; `arguments` is JSON in a string, and need not be valid."""

    name: str
    arguments: str | None = None


class ToolCall(WireModel):
    """A call in an assistant's message."""

    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class ChatMessage(WireModel):
    """One message. What came with an earlier answer (`refusal`, `annotations`, …) may be sent back."""

    role: Role
    content: Content = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    audio: dict[str, Any] | None = None
    annotations: list[Any] | None = None


class FunctionDefinition(WireModel):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str = Field(pattern=NAME_PATTERN)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(WireModel):
    """A tool; functions only."""

    type: Literal["function"]
    function: FunctionDefinition


class ChatTemplateFields(WireModel):
    """What decides how messages become a prompt; also read by `/tokenize`."""

    messages: list[ChatMessage] | None = Field(None, max_length=MAX_MESSAGES)
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None


class ChatRequest(ChatTemplateFields, GenerationRequest):
    """A request for the next message. Defaults come later: null and absent are the same."""

    max_tokens: int | None = Field(None, ge=1, description="Old name of `max_completion_tokens`.")
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20, description="Needs `logprobs`.")
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool | None = None
    echo: bool | None = None
    modalities: list[str] | None = None
    verbosity: str | None = None
    audio: dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    web_search_options: dict[str, Any] | None = None
    # Accepted, and without effect on the answer.
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    prediction: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
