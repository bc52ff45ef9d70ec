"""A request for a chat → what the engine is asked for, and how its text becomes a message. Pure.

Everything that can be wrong with a request is found here, before any response header is sent. May run in a
thread.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from mambad.engine.errors import PromptTooLongError
from mambad.engine.sampling_params import SamplingParams
from mambad.server.chat_choice import MessageFormat
from mambad.server.chat_messages import template_messages, template_tools
from mambad.server.chat_past import ChatPast, continued_ids
from mambad.server.chat_prompt import ChatPrompter, ChatTurn
from mambad.server.chat_template import ChatTemplate
from mambad.server.chat_tools import ToolUse, read_tools
from mambad.server.convert import CompletionPlan, Converter, prompt_rules, text_options
from mambad.server.errors import ApiError, invalid
from mambad.server.json_body import parse_object
from mambad.server.prompts import read_prompts
from mambad.server.reasoning import CLOSE, OPEN, has_thoughts, is_thought_open
from mambad.server.sampling import Asked, ModelLimits, check_combinations, checked_logprobs, default_to
from mambad.server.schemas.chat import ChatRequest, ChatTemplateFields
from mambad.server.settings import AppSettings
from mambad.server.structured import schema_constraint
from mambad.server.tokenizer import TextTokenizer
from mambad.server.tool_parsers.base import ToolParser
from mambad.server.tool_parsers.forced import ListParser, NamedParser
from mambad.server.tool_parsers.registry import DIALECTS, dialect_of

# Field → values that ask for nothing. Null always does.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
OTHER_ENDPOINTS = ("prompt", "suffix", "best_of", "prompt_logprobs", "moderation", "input")


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """A request for a chat that can be served.

    Attributes:
        completion, form: what is generated, and how it becomes a message.
        prompt: the text of the prompt.
        is_continued: whether the prompt's tokens begin with those of the past that was given.
    """

    completion: CompletionPlan
    form: MessageFormat
    prompt: str
    is_continued: bool = False


class ChatConverter:
    """Turns requests into plans for one model."""

    def __init__(
        self, converter: Converter, prompter: ChatPrompter, text: TextTokenizer, settings: AppSettings
    ) -> None:
        self._converter = converter
        self._prompter = prompter
        self._text = text
        self._settings = settings

    def chat(self, raw: bytes, limits: ModelLimits) -> ChatPlan:
        """Read the body of `POST /v1/chat/completions`.

        Raises:
            ApiError, ValidationError, RequestError: what is wrong with it.
        """
        return self.plan(ChatRequest.model_validate(parse_object(raw)), limits)

    def plan(self, wire: ChatRequest, limits: ModelLimits, past: ChatPast | None = None) -> ChatPlan:
        """Return what a request asks for.

        Args:
            wire: the request.
            limits: of the model.
            past: where the conversation stood; its tokens stand if the prompt goes on from there.

        Raises:
            ApiError, RequestError: what is wrong with it.
        """
        self._check(wire)
        tools = read_tools(wire)
        template = self._prompter.template_of(wire)
        messages = template_messages(wire.messages, self._converter.field_policy)
        shown_tools = template_tools(tools.tools) if tools.mode != "none" else None
        turn = ChatTurn(messages, shown_tools, _effort_variables(wire, template))
        prompt = self._prompter.render(wire, template, turn)
        params = self._params(wire, limits, tools)
        form = replace(
            self._format(wire, template, tools, is_free=params.grammar is None),
            is_thought_open=is_thought_open(prompt, _begun(turn) if wire.continue_final_message else ""),
            prefix=_begun(turn) if wire.echo else "",
        )
        rules = prompt_rules(wire, params, limits, self._adds_tokens(wire, prompt))
        token_ids = None if past is None else continued_ids(prompt, past, self._text)
        with _about_messages():
            prompts = read_prompts(prompt if token_ids is None else token_ids, self._text, rules)
        options = text_options(wire, params)
        if options.skip_special_tokens:
            options = replace(options, visible_ids=self._visible_ids(form, template))
        completion = self._converter.plan(wire, limits, prompts, params, options)
        return ChatPlan(completion, form, prompt, is_continued=token_ids is not None)

    def prompt_ids(self, wire: ChatTemplateFields) -> list[int]:
        """Return the tokens of a prompt: what `/tokenize` tells of messages.

        Raises:
            ApiError: 400 naming the field.
        """
        template = self._prompter.template_of(wire)
        messages = template_messages(wire.messages, self._converter.field_policy)
        turn = ChatTurn(messages, template_tools(wire.tools or ()), {})
        prompt = self._prompter.render(wire, template, turn)
        return self._text.encode(prompt, self._adds_tokens(wire, prompt))

    def _adds_tokens(self, wire: ChatTemplateFields, prompt: str) -> bool:
        """Whether the tokenizer adds its own tokens: the template has mostly done so."""
        bos = self._text.bos_token
        return bool(wire.add_special_tokens) and not (bos and prompt.startswith(bos))

    def _check(self, wire: ChatRequest) -> None:
        """Refuse what can't be honoured, alone or together."""
        extra = wire.model_extra or {}
        for name in OTHER_ENDPOINTS:
            if extra.get(name) is not None:
                raise _unsupported(name)
        self._converter.field_policy.check(extra)
        self._converter.model_name(wire.model)
        check_combinations(wire)
        for name, neutral in NEUTRAL.items():
            value = getattr(wire, name)
            if value is not None and value not in neutral:
                raise _unsupported(name)
        if wire.top_logprobs is not None and not wire.logprobs:
            raise invalid("top_logprobs", "`top_logprobs` needs `logprobs: true`.")

    def _params(self, wire: ChatRequest, limits: ModelLimits, tools: ToolUse) -> SamplingParams:
        asked_tokens = default_to(wire.max_completion_tokens, wire.max_tokens)
        num_logprobs = checked_logprobs("top_logprobs", wire.top_logprobs or 0, self._settings)
        asked = Asked(
            max_tokens=default_to(asked_tokens, self._settings.default_chat_tokens),
            num_logprobs=num_logprobs if wire.logprobs else -1,
        )
        params = self._converter.params(wire, limits, asked)
        stop_ids = params.stop_token_ids + self._end_of_turn_ids(params, limits)
        params = msgspec.structs.replace(params, stop_token_ids=stop_ids)
        if params.grammar is not None and tools.mode != "none":
            message = (
                "Calls of `tools` and structured output exclude each other; `tool_choice` may be `none`."
            )
            raise invalid("tool_choice", message, "unsupported_parameter")
        if not tools.is_forced:
            return params
        return msgspec.structs.replace(params, grammar=schema_constraint(tools.schema, "tools"))

    def _end_of_turn_ids(self, params: SamplingParams, limits: ModelLimits) -> tuple[int, ...]:
        """Return the token that ends a message, where the model's configuration does not name it."""
        end_id = None if self._text.eos_token is None else self._text.id_of(self._text.eos_token)
        is_known = params.ignore_eos or end_id in (*limits.eos_token_ids, *params.stop_token_ids)
        return () if end_id is None or is_known or end_id >= limits.vocab_size else (end_id,)

    def _format(
        self, wire: ChatRequest, template: ChatTemplate, tools: ToolUse, *, is_free: bool
    ) -> MessageFormat:
        """Return how texts become messages; one that is not free has a form of its own from its start on."""
        return MessageFormat(
            has_thoughts=is_free and has_thoughts(self._settings.reasoning_parser, template.source),
            shows_thoughts=wire.include_reasoning is not False,
            make_tool_parser=self._tool_parser(template, tools),
            is_parallel=tools.is_parallel,
            tells_calls=tools.mode != "named",
        )

    def _tool_parser(self, template: ChatTemplate, tools: ToolUse) -> Callable[[], ToolParser] | None:
        if tools.mode == "none":
            return None
        if tools.mode == "required":
            return ListParser
        if tools.mode == "named":
            return partial(NamedParser, tools.tools[0].function.name)
        dialect = dialect_of(self._settings.tool_call_parser, template.source)
        if dialect is None:
            message = (
                "`tools` can't be left to this model's choice: its chat template speaks no dialect that is "
                "known here, and --tool-call-parser names none. `tool_choice` may force a call."
            )
            raise invalid("tools", message, "unsupported_parameter")
        return DIALECTS[dialect][0]

    def _visible_ids(self, form: MessageFormat, template: ChatTemplate) -> frozenset[int]:
        """Return the special tokens that a parser has to see as text."""
        tags: tuple[str, ...] = (OPEN, CLOSE) if form.has_thoughts else ()
        dialect = dialect_of(self._settings.tool_call_parser, template.source)
        if form.make_tool_parser is not None and dialect is not None:
            tags += DIALECTS[dialect][1]
        ids = (self._text.id_of(tag) for tag in tags)
        return frozenset(token_id for token_id in ids if token_id is not None)


def _effort_variables(wire: ChatRequest, template: ChatTemplate) -> dict[str, Any]:
    """Return what tells a template how long to think."""
    effort = wire.reasoning_effort
    if effort is None:
        return {}
    variables: dict[str, Any] = {"reasoning_effort": effort}
    if effort == "none":
        # A template without such a switch belongs to a model that does not think.
        return variables | {"enable_thinking": False, "thinking": False}
    if "reasoning_effort" not in template.variables:
        message = "`reasoning_effort` has no meaning for this model's chat template."
        raise invalid("reasoning_effort", message, "unsupported_parameter")
    return variables


def _begun(turn: ChatTurn) -> str:
    """Return the last message's content, if it is the assistant's."""
    last = turn.messages[-1]
    content: str = last.get("content", "")
    return content if last["role"] == "assistant" else ""


@contextlib.contextmanager
def _about_messages() -> Iterator[None]:
    """Let errors name the field that this endpoint has in place of `prompt`."""
    try:
        yield
    except PromptTooLongError as error:
        error.param = "messages"
        raise
    except ApiError as error:
        error.param = "messages" if error.param == "prompt" else error.param
        raise


def _unsupported(name: str) -> ApiError:
    return invalid(name, f"`{name}` is not supported by this endpoint.", "unsupported_parameter")
