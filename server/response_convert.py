"""A request for a response → a plan of a chat, and what has to be known to keep its record.

Everything that can be wrong with a request is found here, before any response header is sent. May run in a
thread. Pure, but for looking into the store.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from mambad.server.chat_convert import ChatConverter, ChatPlan
from mambad.server.chat_past import TextHash
from mambad.server.convert import Converter
from mambad.server.errors import ApiError, invalid
from mambad.server.json_body import parse_object
from mambad.server.response_input import Item, messages_of, read_items
from mambad.server.response_names import name_here, named_as_here
from mambad.server.response_object import ENDED, asked_object
from mambad.server.response_store import ResponseStore, StoredResponse, item_bytes, packed_ids
from mambad.server.response_tools import chat_tool_choice, chat_tools
from mambad.server.sampling import ModelLimits
from mambad.server.schemas.chat import ChatRequest
from mambad.server.schemas.common import asks_for_nothing
from mambad.server.schemas.generation import GenerationRequest
from mambad.server.schemas.responses import LOGPROBS, REFUSED, ResponsesRequest, TextFormat
from mambad.server.schemas.structured import JsonSchemaFormat, ResponseFormat
from mambad.server.tenants import tenant_of

OTHER_ENDPOINTS = (
    *("add_generation_prompt", "add_special_tokens", "audio", "best_of", "chat_template"),
    *("continue_final_message", "documents", "echo", "include_reasoning", "logprobs", "max_tokens"),
    *("modalities", "prediction", "prompt_logprobs", "reasoning_effort", "suffix", "verbosity"),
    "web_search_options",
)


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """A response that can be made.

    Attributes:
        chat: what is generated.
        tenant: whose it is.
        items: the conversation before it and its input.
        asked: the settings that it sends back.
        is_stored, is_background: whether its record is kept; whether nobody waits for it.
        num_rewritten_tokens: tokens of the past that do not stand, because it was rendered in another way.
        stop_token_ids: what may have ended the answer without being part of it.
        prompt_hash, packed_prompt: the prompt as a record keeps it.
        num_item_bytes: what `items` count for.
    """

    chat: ChatPlan
    tenant: str
    items: tuple[Item, ...]
    asked: dict[str, Any]
    is_stored: bool
    is_background: bool
    num_rewritten_tokens: int
    stop_token_ids: frozenset[int]
    prompt_hash: TextHash
    packed_prompt: bytes
    num_item_bytes: int


class ResponseConverter:
    """Turns requests into plans for one model."""

    def __init__(self, converter: Converter, chats: ChatConverter, store: ResponseStore) -> None:
        self._converter = converter
        self._chats = chats
        self._store = store

    def response(self, raw: bytes, limits: ModelLimits, digest: bytes) -> ResponsePlan:
        """Read the body of `POST /v1/responses`.

        Args:
            raw: the body.
            limits: of the model.
            digest: of the key that came with it.

        Raises:
            ApiError, ValidationError, RequestError: what is wrong with it.
        """
        wire = ResponsesRequest.model_validate(parse_object(raw))
        self._check(wire)
        tenant = tenant_of(digest, wire.cache_salt)
        previous = self._previous(wire, tenant)
        past_items = () if previous is None else previous.items
        new_items = read_items(wire.input, partial(self._store.find_item, tenant))
        items = (*past_items, *new_items)
        past = None if previous is None else previous.past
        with named_as_here():
            chat = self._chats.plan(_chat_request(wire, items, len(past_items)), limits, past)
        chat = _with_own_names(chat)
        _check_logprobs(wire, chat)
        params = chat.completion.params
        num_past_tokens = 0 if past is None else len(past.token_ids)
        return ResponsePlan(
            chat=chat,
            tenant=tenant,
            items=items,
            asked=asked_object(wire, params),
            is_stored=wire.store is not False,
            is_background=bool(wire.background),
            num_rewritten_tokens=0 if chat.is_continued else num_past_tokens,
            stop_token_ids=frozenset((*limits.eos_token_ids, *params.stop_token_ids)),
            prompt_hash=TextHash(chat.prompt),
            packed_prompt=packed_ids(chat.completion.prompts[0].token_ids),
            num_item_bytes=item_bytes(new_items) + (0 if previous is None else previous.num_item_bytes),
        )

    def _check(self, wire: ResponsesRequest) -> None:
        """Refuse what can't be honoured, alone or together."""
        extra = wire.model_extra or {}
        for name in OTHER_ENDPOINTS:
            if extra.get(name) is not None:
                raise _unsupported(name)
        self._converter.field_policy.check(extra)
        self._converter.model_name(wire.model)
        for name, neutral in REFUSED.items():
            if not asks_for_nothing(getattr(wire, name), neutral):
                raise _unsupported(name)
        if wire.input is None and wire.previous_response_id is None:
            raise invalid("input", "`input` must be given: a string or a list of items.")
        if wire.background and wire.stream:
            message = "`background` and `stream` can't be combined."
            raise invalid("background", message, "unsupported_parameter")
        if wire.background and wire.store is False:
            raise invalid("background", "`background` needs `store`: how else would you get the response?")
        if wire.stream_options is not None and wire.stream_options.continuous_usage_stats:
            raise _unsupported("stream_options.continuous_usage_stats")

    def _previous(self, wire: ResponsesRequest, tenant: str) -> StoredResponse | None:
        """Return the response that is continued."""
        field, name = "previous_response_id", wire.previous_response_id
        if name is None:
            return None
        found = self._store.get(tenant, name)
        if found is None:
            message = f"Previous response with id '{name[:100]}' not found."
            raise ApiError(404, message, field, "previous_response_not_found")
        status = found.body["status"]
        if status not in ENDED:
            message = f"The previous response can't be continued: its status is `{status}`."
            raise invalid(field, message, "previous_response_not_completed")
        return found


def _chat_request(wire: ResponsesRequest, items: tuple[Item, ...], num_known: int) -> ChatRequest:
    """Return the chat that asks for the same."""
    shared = {name: getattr(wire, name) for name in GenerationRequest.model_fields}
    text_format = None if wire.text is None else wire.text.format
    tools = chat_tools(wire.tools)
    wants_logprobs = bool(wire.top_logprobs) or LOGPROBS in (wire.include or ())
    shared |= {
        "messages": messages_of(items, wire.instructions, num_known),
        "max_completion_tokens": wire.max_output_tokens,
        "tools": tools,
        "tool_choice": chat_tool_choice(wire.tool_choice, tools is not None),
        "parallel_tool_calls": wire.parallel_tool_calls,
        "reasoning_effort": None if wire.reasoning is None else wire.reasoning.effort,
        "logprobs": wants_logprobs,
        "top_logprobs": wire.top_logprobs if wants_logprobs else None,
        "response_format": None if text_format is None else _response_format(text_format),
        "chat_template_kwargs": wire.chat_template_kwargs,
    }
    # Each part has been checked, under the name that it has here.
    return ChatRequest.model_construct(**shared)


def _response_format(wire: TextFormat) -> ResponseFormat:
    if wire.type != "json_schema":
        return ResponseFormat(type=wire.type)
    for name, value in (("name", wire.name), ("schema", wire.json_schema)):
        if value is None:
            raise invalid(f"text.format.{name}", f"A `text.format` of type `json_schema` needs `{name}`.")
    described = JsonSchemaFormat.model_validate({"name": wire.name, "schema": wire.json_schema})
    return ResponseFormat(type=wire.type, json_schema=described)


def _with_own_names(chat: ChatPlan) -> ChatPlan:
    """Let the grammar, too, name the field that it has here: its errors come later."""
    params = chat.completion.params
    if params.grammar is None:
        return chat
    grammar = msgspec.structs.replace(params.grammar, field=name_here(params.grammar.field))
    params = msgspec.structs.replace(params, grammar=grammar)
    return replace(chat, completion=replace(chat.completion, params=params))


def _check_logprobs(wire: ResponsesRequest, chat: ChatPlan) -> None:
    """Refuse log-probabilities of a text whose tokens can't be told from those of calls."""
    if chat.completion.params.num_logprobs >= 0 and chat.form.make_tool_parser is not None:
        field = "top_logprobs" if wire.top_logprobs else "include"
        message = "Log-probabilities can't be had of an answer that may call `tools`."
        raise invalid(field, message, "unsupported_parameter")


def _unsupported(name: str) -> ApiError:
    instead = {
        "response_format": " Use `text.format`.",
        "max_tokens": " Use `max_output_tokens`.",
        "logprobs": f" Use `include` with `{LOGPROBS}`.",
        "reasoning_effort": " Use `reasoning.effort`.",
    }
    message = f"`{name}` is not supported by this endpoint.{instead.get(name, '')}"
    return invalid(name, message, "unsupported_parameter")
