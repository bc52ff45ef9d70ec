"""Items of a conversation in `/v1/responses`, on the wire: what a request may hold, and what an answer holds.

Which parts a message may have depends on its role, and is checked in `response_input`.
"""

from typing import Annotated, Any, Literal

from pydantic import WithJsonSchema

from mambad.server.schemas.common import WireModel

MAX_ITEMS = 10_000


class MessageItem(WireModel):
    """A message. The assistant's may be sent back as they came."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Any


class FunctionCallItem(WireModel):
    """A call as the model made it; `arguments` is JSON in a string, and need not be valid."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class FunctionCallOutputItem(WireModel):
    """What a call has yielded."""

    type: Literal["function_call_output"]
    call_id: str
    output: Any


class ReasoningItem(WireModel):
    """A thought: the texts of `content`, or without them those of `summary`."""

    type: Literal["reasoning"]
    content: Any = None
    summary: Any = None
    encrypted_content: str | None = None


class ItemReference(WireModel):
    """An item of a stored response."""

    type: Literal["item_reference"] | None = None
    id: str


ITEMS: dict[str, type[WireModel]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
    "item_reference": ItemReference,
}

_TEXT = {"type": "string"}


def _part(text: str, *kinds: str) -> dict[str, Any]:
    """Return the schema of a part of these types, whose text stands in the field `text`."""
    return {
        "type": "object",
        "required": ["type", text],
        "properties": {"type": {"type": "string", "enum": list(kinds)}, text: _TEXT},
    }


_PARTS = [
    _part("text", "input_text", "output_text", "text", "reasoning_text", "summary_text"),
    _part("refusal", "refusal"),
]
_CONTENT = {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": _PARTS}}]}
_OPTIONAL_CONTENT = {"anyOf": [*_CONTENT["anyOf"], {"type": "null"}]}


def _item(kind: str, *required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["type", *required],
        "properties": {"type": {"const": kind}, **properties},
    }


_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "type": {"enum": ["message", None]},
        "role": {"type": "string", "enum": ["user", "assistant", "system", "developer"]},
        "content": _CONTENT,
    },
}
_CALL = _item("function_call", "call_id", "name", "arguments", call_id=_TEXT, name=_TEXT, arguments=_TEXT)
_OUTPUT = _item("function_call_output", "call_id", "output", call_id=_TEXT, output=_CONTENT)
_REASONING = _item("reasoning", content=_OPTIONAL_CONTENT, summary=_OPTIONAL_CONTENT)
_REFERENCE = {
    "type": "object",
    "required": ["id"],
    "properties": {"type": {"enum": ["item_reference", None]}, "id": _TEXT},
}
_LIST = {
    "type": "array",
    "items": {"anyOf": [_MESSAGE, _CALL, _OUTPUT, _REASONING, _REFERENCE]},
    "minItems": 1,
    "maxItems": MAX_ITEMS,
}
Input = Annotated[Any, WithJsonSchema({"anyOf": [_TEXT, _LIST, {"type": "null"}]})]
