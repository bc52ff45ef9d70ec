"""Items of a conversation → messages for a template. Pure.

    `input` → items (read_items) → messages (messages_of)

A model's turn comes apart in items (a thought, a message, calls); here it becomes one message again.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from mambad.server.errors import ApiError, invalid
from mambad.server.schemas.chat import ChatMessage, FunctionCall, ToolCall
from mambad.server.schemas.response_items import (
    ITEMS,
    MAX_ITEMS,
    FunctionCallItem,
    FunctionCallOutputItem,
    ItemReference,
    MessageItem,
    ReasoningItem,
)

FIELD = "input"
MAX_DETAIL_CHARS = 200
MEDIA = ("input_image", "input_file", "input_audio", "computer_screenshot")
TEXTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "reasoning_text": "text",
    "summary_text": "text",
}
"""Type of a part → where its text stands."""

Item = dict[str, Any]


def read_items(value: Any, find: Callable[[str], Item | None]) -> list[Item]:
    """Return the items of a request's `input`, those that it only names included.

    Args:
        value: the field.
        find: returns a stored item by its id.

    Raises:
        ApiError: 400 naming what can't be read, 404 an item that is not known.
    """
    if value is None:
        return []
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise invalid(FIELD, "`input` must be a string or a list of items.")
    if len(value) > MAX_ITEMS:
        raise invalid(FIELD, f"`input` may hold {MAX_ITEMS} items, this one holds {len(value)}.")
    return [_resolved(item, f"{FIELD}.{place}", find) for place, item in enumerate(value)]


def messages_of(items: Sequence[Item], instructions: str | None, num_known: int) -> list[ChatMessage]:
    """Return the messages of a conversation.

    Args:
        items: as `read_items` gave them.
        instructions: come before everything else.
        num_known: how many of the items were read before; errors count from there.

    Raises:
        ApiError: 400 naming the part that can't be read.
    """
    writer = _Writer()
    if instructions is not None:
        writer.add("system", instructions)
    for place, item in enumerate(items):
        path = f"{FIELD}.{place - num_known}"
        writer.take(_parsed(item, path), path)
    return writer.finished()


class _Writer:
    """Puts messages together; of the model's turn, the parts wait until it has ended."""

    def __init__(self) -> None:
        self._messages: list[ChatMessage] = []
        self._turn: dict[str, Any] = {}

    def take(self, item: Any, path: str) -> None:
        """Add an item."""
        if isinstance(item, ReasoningItem):
            self._end_turn(if_spoken=True)
            thought = [self._turn.get("reasoning_content", ""), _thought(item, path)]
            self._turn["reasoning_content"] = "\n".join(filter(None, thought))
        elif isinstance(item, FunctionCallItem):
            function = FunctionCall(name=item.name, arguments=item.arguments)
            call = ToolCall(id=item.call_id, type="function", function=function)
            self._turn.setdefault("tool_calls", []).append(call)
        elif isinstance(item, FunctionCallOutputItem):
            output = _text(item.output, f"{path}.output")
            self.add("tool", output, tool_call_id=item.call_id)
        else:
            assert isinstance(item, MessageItem)
            content = _text(item.content, f"{path}.content")
            if item.role == "assistant":
                self._end_turn(if_spoken=True)
                self._turn["content"] = content
            else:
                self.add(item.role, content)

    def add(self, role: str, content: str, **fields: Any) -> None:
        """Add a message that stands alone."""
        self._end_turn()
        self._messages.append(ChatMessage(role=role, content=content, **fields))  # type: ignore[arg-type]

    def finished(self) -> list[ChatMessage]:
        """Return the messages."""
        self._end_turn()
        return self._messages

    def _end_turn(self, if_spoken: bool = False) -> None:
        """Begin anew; if asked so, only when the turn has more than thoughts."""
        is_over = not if_spoken or "content" in self._turn or "tool_calls" in self._turn
        if self._turn and is_over:
            self._messages.append(ChatMessage(role="assistant", **self._turn))
            self._turn = {}


def _resolved(item: Any, path: str, find: Callable[[str], Item | None]) -> Item:
    parsed = _parsed(item, path)
    if not isinstance(parsed, ItemReference):
        return {"type": "message", **item}
    found = find(parsed.id)
    if found is None:
        message = f"Item with id '{parsed.id[:100]}' not found."
        raise ApiError(404, message, f"{path}.id", "item_not_found")
    return found


def _parsed(item: Any, path: str) -> Any:
    if not isinstance(item, dict):
        raise invalid(path, f"`{path}` must be an object.")
    kind = item.get("type")
    if kind is None:
        kind = "item_reference" if "id" in item and "role" not in item else "message"
    model = ITEMS.get(kind) if isinstance(kind, str) else None
    if model is None:
        shown = f"`{kind[:64]}`" if isinstance(kind, str) else "what is no string"
        message = f"`{path}`: items of type {shown} are not supported; there are {', '.join(ITEMS)}."
        raise invalid(f"{path}.type", message, "unsupported_parameter")
    try:
        return model.model_validate({**item, "type": kind})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join((path, *map(str, first["loc"])))[:MAX_DETAIL_CHARS]
        raise invalid(where, f"{where}: {first['msg']}"[:MAX_DETAIL_CHARS]) from None


def _text(content: Any, path: str) -> str:
    """Return the text of a string or of a list of parts, which are joined with line ends."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(path, f"`{path}` must be a string or a list of parts.")
    return "\n".join(_texts(content, path))


def _texts(parts: list[Any], path: str) -> Iterator[str]:
    for place, part in enumerate(parts):
        where = f"{path}.{place}"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in MEDIA:
            message = f"`{where}`: `{kind}` is not supported: this model reads text only."
            raise invalid(where, message, "unsupported_parameter")
        if not isinstance(kind, str) or kind not in TEXTS:
            raise invalid(where, f"`{where}` must be an object of type `input_text` or `output_text`.")
        text = part.get(TEXTS[kind])
        if not isinstance(text, str):
            raise invalid(f"{where}.{TEXTS[kind]}", f"A part of type `{kind}` needs a string.")
        yield text


def _thought(item: ReasoningItem, path: str) -> str:
    for name in ("content", "summary"):
        value = getattr(item, name)
        if value not in (None, "", []):
            return _text(value, f"{path}.{name}")
    if item.encrypted_content:
        message = f"`{path}.encrypted_content` is not from this server, which can't read it."
        raise invalid(f"{path}.encrypted_content", message, "unsupported_parameter")
    return ""
