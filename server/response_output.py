"""Deltas → output items of a response, and the events that tell of them.

    Delta → thought, text and calls (chat_choice.py) → items, and an event for each step of an item

The one code path behind streamed and whole responses. Pure: no HTTP, no clock; event numbers come later.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mambad.server.chat_choice import TOOL_CALLS, ChatChoice, MessageFormat
from mambad.server.choice import AlignedToken, Delta
from mambad.server.tool_parsers.base import Piece, PieceKind

Event = dict[str, Any]
Entry = dict[str, Any]
MakeEntries = Callable[[Sequence[AlignedToken]], list[Entry]]
KINDS: dict[PieceKind, str] = {"content": "message", "reasoning": "reasoning", "call": "function_call"}
PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
TEXT_EVENTS = {
    "message": "output_text",
    "reasoning": "reasoning_text",
    "function_call": "function_call_arguments",
}
"""Kind of an item → what events call its text."""


@dataclass(slots=True)
class _OpenItem:
    """The item that is being written."""

    kind: str
    id: str
    name: str = ""
    call_id: str = ""
    texts: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    def part(self, text: str) -> dict[str, Any]:
        """Return its one part of content."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(self.entries)}

    def item(self, status: str) -> dict[str, Any]:
        """Return it as it is; before its end, without its text."""
        start = {"id": self.id, "type": self.kind, "status": status}
        text = "".join(self.texts)
        if self.kind == "function_call":
            return start | {"call_id": self.call_id, "name": self.name, "arguments": text}
        content = [] if status == "in_progress" else [self.part(text)]
        if self.kind == "reasoning":
            return start | {"summary": [], "content": content}
        return start | {"role": "assistant", "content": content}


class ResponseOutput:
    """Makes the output of one response.

    Args:
        form: how the text becomes items.
        make_entries: makes log-probabilities as they are sent; None = nobody asked for them.

    Attributes:
        items: those that have ended.
        token_ids: all tokens so far.
        finish_reason, is_stop_string: how it has ended; None while it has not.
        ends_in_calls: whether it has ended in calls of tools.
    """

    def __init__(self, form: MessageFormat, make_entries: MakeEntries | None) -> None:
        self._choice = ChatChoice(form)
        self._make_entries = make_entries
        self._open: _OpenItem | None = None
        self._aligned: list[AlignedToken] = []  # not sent yet
        self._events: list[Event] = []
        self.items: list[dict[str, Any]] = []
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.is_stop_string = False
        self.ends_in_calls = False

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens so far that belong to a thought."""
        return self._choice.num_reasoning_tokens

    def feed(self, delta: Delta) -> list[Event]:
        """Take the next delta; return what there is to tell."""
        self.token_ids += delta.token_ids
        self._aligned += delta.aligned
        for piece in self._choice.feed(delta):
            self._take(piece)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.is_stop_string = isinstance(delta.stop_reason, str)
            self.ends_in_calls = self._choice.finish_reason(delta) == TOOL_CALLS
            if self._open is None and not self.items:
                self._begin("message")
            self._end("completed" if delta.finish_reason == "stop" else "incomplete")
        events, self._events = self._events, []
        return events

    def cut(self) -> list[dict[str, Any]]:
        """Return the items of a response that ends before its time, the unfinished one last."""
        rest = [] if self._open is None else [self._open.item("incomplete")]
        return self.items + rest

    def _take(self, piece: Piece) -> None:
        if piece.kind == "arguments":
            self._write(piece.text)
            return
        kind = KINDS[piece.kind]
        if self._open is None or self._open.kind != kind or piece.kind == "call":
            self._end("completed")
            self._begin(kind, piece.text if piece.kind == "call" else "")
        if piece.kind != "call":
            self._write(piece.text)

    def _begin(self, kind: str, name: str = "") -> None:
        call_id = f"call_{uuid.uuid4().hex[:24]}" if kind == "function_call" else ""
        item = self._open = _OpenItem(kind, f"{PREFIXES[kind]}_{uuid.uuid4().hex}", name, call_id)
        self._tell("output_item.added", item=item.item("in_progress"))
        if kind != "function_call":
            self._tell_of_item("content_part.added", part=item.part(""))

    def _write(self, text: str) -> None:
        item = self._open
        assert item is not None
        item.texts.append(text)
        self._tell_of_item(f"{TEXT_EVENTS[item.kind]}.delta", delta=text, **self._new_entries(item))

    def _end(self, status: str) -> None:
        """End the item that is being written, if there is one."""
        item = self._open
        if item is None:
            return
        if item.kind == "message":
            entries = self._new_entries(item)
            if entries["logprobs"]:  # of tokens at the end that show no text of their own
                self._tell_of_item("output_text.delta", delta="", **entries)
        text = "".join(item.texts)
        name = f"{TEXT_EVENTS[item.kind]}.done"
        if item.kind == "function_call":
            self._tell_of_item(name, name=item.name, arguments=text)
        else:
            logprobs = {"logprobs": list(item.entries)} if item.kind == "message" else {}
            self._tell_of_item(name, text=text, **logprobs)
            self._tell_of_item("content_part.done", part=item.part(text))
        ended = item.item(status)
        self._tell("output_item.done", item=ended)
        self.items.append(ended)
        self._open = None

    def _new_entries(self, item: _OpenItem) -> dict[str, list[Entry]]:
        """Return the field with the log-probabilities that were not sent yet; only texts have it."""
        if item.kind != "message":
            return {}
        start = self._choice.thought_end
        if self._make_entries is None or start is None:
            return {"logprobs": []}
        tokens, self._aligned = self._aligned, []
        entries = self._make_entries([token for token in tokens if token.offset >= start])
        item.entries += entries
        return {"logprobs": entries}

    def _tell(self, kind: str, **content: Any) -> None:
        self._events.append({"type": f"response.{kind}", "output_index": len(self.items), **content})

    def _tell_of_item(self, kind: str, **content: Any) -> None:
        item = self._open
        assert item is not None
        where = {} if item.kind == "function_call" else {"content_index": 0}
        self._tell(kind, item_id=item.id, **where, **content)
