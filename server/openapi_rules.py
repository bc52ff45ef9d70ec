"""What the wire models can't say of themselves, added to `/openapi.json`.

Limits of this model and this server, and fields that need each other.

What JSON Schema can't say at all (`min_tokens` is at most `max_tokens`, a prompt fits the context) is a 400
nevertheless.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mambad.server.chat_convert import NEUTRAL
from mambad.server.chat_tools import LEGACY, NO_CALLS
from mambad.server.schemas.generation import MAX_STOP_CHARS, MAX_STOPS
from mambad.server.schemas.responses import REFUSED

NULL = {"type": "null"}
GENERATING = ("CompletionRequest", "ChatRequest", "ResponsesRequest")
REQUESTS = (*GENERATING, "TokenizeRequest", "DetokenizeRequest")
REQUIRED = {"CompletionRequest": "prompt", "ChatRequest": "messages", "DetokenizeRequest": "tokens"}
ONE_OF = {"TokenizeRequest": ("prompt", "messages"), "AbortRequest": ("request_ids", "abort_all")}


@dataclass(frozen=True, slots=True)
class Limits:
    """Of this server; `vocab_size` is None while the model loads."""

    vocab_size: int | None
    max_logprobs: int
    takes_priority: bool


def refine(schemas: Mapping[str, dict[str, Any]], limits: Limits) -> None:
    """Narrow the schemas of requests, by name, in place, to what is accepted."""
    for name, schema in schemas.items():
        if name in GENERATING:
            _refine_generation(schema, limits)
        if name == "ResponsesRequest":
            _refine_responses(schema)
        if name == "ChatRequest":
            _refine_chat(schema)
        if name == "ChatMessage":
            _refine_message(schema)
        if name in REQUESTS:
            _refine_fields(schema["properties"], limits.vocab_size)
        if name in REQUIRED:
            _require(schema, REQUIRED[name])
        if name in ONE_OF:
            schema["anyOf"] = [
                {"required": [field], "properties": {field: _given(schema["properties"][field])}}
                for field in ONE_OF[name]
            ]


def _refine_fields(fields: Mapping[str, Any], vocab_size: int | None) -> None:
    if "messages" in fields:
        _with_items(fields["messages"])
    for name in ("prompt", "tokens", "allowed_token_ids", "stop_token_ids"):
        if name in fields and vocab_size is not None:
            _bound_ids(fields[name], vocab_size)


def _refine_generation(schema: dict[str, Any], limits: Limits) -> None:
    fields = schema["properties"]
    text = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
    fields["stop"]["anyOf"] = [text, {"type": "array", "items": text, "maxItems": MAX_STOPS}, NULL]
    fields["truncate_prompt_tokens"]["anyOf"] = [{"const": -1}, {"type": "integer", "minimum": 1}, NULL]
    if not limits.takes_priority:
        fields["priority"]["anyOf"] = [{"const": 0}, NULL]
    for name in ("logprobs", "prompt_logprobs", "top_logprobs"):
        for option in fields.get(name, {}).get("anyOf", ()):
            if option.get("type") == "integer":
                option["maximum"] = limits.max_logprobs
    for name, text_of_it in (("suffix", "Not supported."), ("best_of", "Only the value of `n`.")):
        if name in fields:
            fields[name] = NULL | {"description": text_of_it}
    needs_stream = {"properties": {"stream": {"const": True}}, "required": ["stream"]}
    rules = [_if("stream_options", {"type": "object"}, needs_stream)]
    if "prompt_logprobs" in fields:
        no_stream = {"properties": {"stream": {"enum": [False, None]}}}
        rules.append(_if("prompt_logprobs", {"type": "integer"}, no_stream))
    if "echo" in fields and "prompt" in fields:
        echoes = {"properties": {"echo": {"const": True}}, "required": ["echo"]}
        rules.append(_if("max_tokens", {"const": 0}, echoes))
    schema["allOf"] = rules


def _refine_responses(schema: dict[str, Any]) -> None:
    for name, neutral in REFUSED.items():
        schema["properties"][name] = {"enum": [*neutral, None], "description": "Not supported."}
    goes_on = {
        "required": ["previous_response_id"],
        "properties": {"previous_response_id": {"type": "string"}},
    }
    begins = {"required": ["input"], "properties": {"input": {"type": ["string", "array"]}}}
    schema["anyOf"] = [begins, goes_on]
    waits = {"properties": {"stream": {"enum": [False, None]}, "store": {"enum": [True, None]}}}
    schema["allOf"].append(_if("background", {"const": True}, waits))


def _refine_chat(schema: dict[str, Any]) -> None:
    fields = schema["properties"]
    for name, neutral in NEUTRAL.items():
        fields[name] = {"enum": [*neutral, None], "description": "Not supported."}
    for name in LEGACY:
        fields[name] = {"enum": [*NO_CALLS, None], "description": "Not supported; see `tools`."}
    _with_items(fields["tools"])
    has_tools = {"properties": {"tools": {"type": "array"}}, "required": ["tools"]}
    has_logprobs = {"properties": {"logprobs": {"const": True}}, "required": ["logprobs"]}
    schema["allOf"] += [
        _if("tool_choice", {"enum": ["auto", "required"]}, has_tools),
        _if("tool_choice", {"type": "object"}, has_tools),
        _if("top_logprobs", {"type": "integer"}, has_logprobs),
    ]


def _refine_message(schema: dict[str, Any]) -> None:
    """Say what a message of each role needs, and that only the assistant's holds calls."""
    schema["properties"]["audio"] = NULL | {"description": "Not supported."}
    (*contents, _) = schema["properties"]["content"]["anyOf"]
    spoken = {"content": {"anyOf": contents}, "tool_calls": {"enum": [[], None]}, "function_call": NULL}
    others = [role for role in schema["properties"]["role"]["enum"] if role not in ("assistant", "tool")]
    answer = {"role": {"const": "tool"}, **spoken, "tool_call_id": {"type": "string", "minLength": 1}}
    schema["anyOf"] = [
        {"properties": {"role": {"const": "assistant"}}},
        {"properties": {"role": {"enum": others}, **spoken}, "required": ["content"]},
        {"properties": answer, "required": ["content", "tool_call_id"]},
    ]


def _with_items(field: dict[str, Any]) -> None:
    """Say that a list holds something."""
    for option in field["anyOf"]:
        if option.get("type") == "array":
            option["minItems"] = 1


def _if(field: str, is_like: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
    return {"if": {"properties": {field: is_like}, "required": [field]}, "then": then}


def _given(field: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a field that asks for something: not null, and of a switch only true."""
    (option,) = (each for each in field["anyOf"] if each != NULL)
    return {"const": True} if option == {"type": "boolean"} else option


def _require(schema: dict[str, Any], field: str) -> None:
    schema.setdefault("required", []).append(field)
    found = schema["properties"][field]
    if NULL in found.get("anyOf", ()):
        found["anyOf"].remove(NULL)
    found.pop("default", None)


def _bound_ids(schema: Any, vocab_size: int) -> None:
    """Bound all integers in a schema."""
    if isinstance(schema, dict):
        if schema.get("type") == "integer":
            schema |= {"minimum": 0, "maximum": vocab_size - 1}
        for value in schema.values():
            _bound_ids(value, vocab_size)
    elif isinstance(schema, list):
        for value in schema:
            _bound_ids(value, vocab_size)
