"""Messages on the wire → the plain values that chat templates read. Pure.

Templates know `system`, `user`, `assistant` and `tool`, texts, and calls whose arguments are objects. Keys
without a value are left out, as in Transformers: many templates would print a null.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from mambad.server.errors import ApiError, invalid
from mambad.server.schemas.chat import ChatMessage, FunctionCall, Tool
from mambad.server.schemas.common import FieldPolicy

ROLES = {"developer": "system", "function": "tool"}
MEDIA = ("image_url", "input_image", "input_audio", "file", "input_file", "video_url", "audio_url")


def template_messages(messages: Sequence[ChatMessage] | None, policy: FieldPolicy) -> list[dict[str, Any]]:
    """Return the messages of a request for a template.

    Raises:
        ApiError: 400 naming the part that can't be read.
    """
    if not messages:
        raise invalid("messages", "`messages` must hold at least one message.")
    return [_message(message, f"messages.{place}", policy) for place, message in enumerate(messages)]


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """Return the tools of a request for a template; None if there are none."""
    return [tool.model_dump(exclude_none=True) for tool in tools] or None


def _message(message: ChatMessage, path: str, policy: FieldPolicy) -> dict[str, Any]:
    policy.check(message.model_extra or {})
    if message.audio is not None:
        raise _unsupported(f"{path}.audio", "audio")
    content = _content(message, path)
    role = ROLES.get(message.role, message.role)
    found: dict[str, Any] = {"role": role, "content": content}
    if message.role == "tool" and not message.tool_call_id:
        raise invalid(f"{path}.tool_call_id", "A message of role `tool` needs the `tool_call_id` it answers.")
    found |= {"name": message.name, "tool_call_id": message.tool_call_id}
    if role == "assistant":
        found["reasoning_content"] = message.reasoning_content or message.reasoning
        found["tool_calls"] = _tool_calls(message)
    elif message.tool_calls or message.function_call:
        raise invalid(f"{path}.tool_calls", "Only a message of role `assistant` holds calls.")
    return {name: value for name, value in found.items() if value is not None}


def _content(message: ChatMessage, path: str) -> str | None:
    """Return the text of a message; a list of parts is joined with line ends."""
    content = message.content
    if content is None:
        if message.role == "assistant":
            has_more = message.tool_calls or message.function_call
            return message.refusal if has_more else message.refusal or ""
        raise invalid(f"{path}.content", f"A message of role `{message.role}` needs `content`.")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"{path}.content", "`content` must be a string or a list of parts.")
    return "\n".join(_part(part, f"{path}.content.{place}") for place, part in enumerate(content))


def _part(part: Any, path: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", "refusal"):
        text = part.get(kind)
        if isinstance(text, str):
            return text
        raise invalid(f"{path}.{kind}", f"A part of type `{kind}` needs a string `{kind}`.")
    if kind in MEDIA:
        raise _unsupported(path, f"content of type `{kind}`")
    raise invalid(path, "A part of `content` must be an object of type `text` or `refusal`.")


def _tool_calls(message: ChatMessage) -> list[dict[str, Any]] | None:
    calls = [(call.id, call.function) for call in message.tool_calls or ()]
    if message.function_call is not None:
        calls.append((None, message.function_call))
    return [_call(call_id, function) for call_id, function in calls] or None


def _call(call_id: str | None, function: FunctionCall) -> dict[str, Any]:
    found: dict[str, Any] = {} if call_id is None else {"id": call_id}
    return found | {
        "type": "function",
        "function": {"name": function.name, "arguments": _arguments(function.arguments)},
    }


def _arguments(text: str | None) -> Any:
    """Return arguments as the object they describe; what is no JSON stays the text that the model wrote."""
    if not text or not text.strip():
        return {}
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _unsupported(path: str, what: str) -> ApiError:
    message = f"`{path}`: {what} is not supported: this model reads text only."
    return invalid(path, message, "unsupported_parameter")
