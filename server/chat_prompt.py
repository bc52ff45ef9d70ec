"""Messages → the text of a prompt, by the template that counts for a request. Pure; bounded in time.

Serves `/v1/chat/completions` and `/tokenize`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mambad.server.chat_template import ChatTemplate, TemplateFaultError, compiled
from mambad.server.chat_template_files import ChatTemplates
from mambad.server.errors import ApiError, invalid
from mambad.server.schemas.chat import ChatTemplateFields
from mambad.server.settings import AppSettings

RESERVED = frozenset(("messages", "tools", "documents", "add_generation_prompt"))
CONTINUE_MARK = "\ue000continue here\ue001"


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """What a template is given.

    Attributes:
        messages, tools: in the template's form.
        variables: others, of the server's own.
    """

    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]] | None
    variables: Mapping[str, Any]


class ChatPrompter:
    """Renders prompts for one model."""

    def __init__(self, templates: ChatTemplates, settings: AppSettings) -> None:
        self._templates = templates
        self._settings = settings

    def template_of(self, wire: ChatTemplateFields) -> ChatTemplate:
        """Return the template that counts for a request.

        Raises:
            ApiError: 400: the model has none, or the request may not bring its own.
        """
        if wire.chat_template is not None:
            return self._of_request(wire.chat_template)
        template = self._templates.choose(bool(wire.tools))
        if template is None:
            message = (
                "This model has no chat template, so it can't read `messages`. Start the server with "
                "--chat-template FILE, or use /v1/completions."
            )
            raise invalid("messages", message, "chat_template_missing")
        return template

    def render(self, wire: ChatTemplateFields, template: ChatTemplate, turn: ChatTurn) -> str:
        """Return the text of the prompt.

        Raises:
            ApiError: 400 with what the template says against it.
        """
        if wire.add_generation_prompt and wire.continue_final_message:
            raise invalid(
                "continue_final_message",
                "`continue_final_message` and `add_generation_prompt` exclude each other.",
            )
        messages = turn.messages
        add_generation_prompt = wire.add_generation_prompt
        if add_generation_prompt is None:
            add_generation_prompt = not wire.continue_final_message
        if wire.continue_final_message:
            messages = _marked(messages)
        variables = {
            **self._templates.special_tokens,
            **turn.variables,
            **_extra_variables(wire),
            "messages": messages,
            "tools": turn.tools,
            "documents": wire.documents,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = template.render(variables)
        except TemplateFaultError as error:
            message = f"The chat template can't be applied: {error}"
            raise invalid("messages", message, "chat_template_error") from None
        return _cut_at_mark(text) if wire.continue_final_message else text

    def _of_request(self, text: str) -> ChatTemplate:
        """Return the template that a request names, or brings."""
        if text in self._templates.by_name:
            return self._templates.by_name[text]
        if not self._settings.trust_request_chat_template:
            message = "`chat_template` needs a server that was started with --trust-request-chat-template."
            raise invalid("chat_template", message, "unsupported_parameter")
        try:
            return compiled(text)
        except TemplateFaultError as error:
            raise invalid("chat_template", f"The template can't be used: {error}") from None


def _extra_variables(wire: ChatTemplateFields) -> dict[str, Any]:
    extra = wire.chat_template_kwargs or {}
    for name in extra:
        if name in RESERVED or name.endswith("_token"):
            param = "chat_template_kwargs"
            raise invalid(param, f"`{param}` may not set `{name[:64]}`.")
    return extra


def _marked(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mark the end of the last message, which is where the answer goes on."""
    last = messages[-1]
    if not isinstance(last.get("content"), str):
        raise _no_continuation("the last message has no content")
    return [*messages[:-1], {**last, "content": last["content"] + CONTINUE_MARK}]


def _cut_at_mark(text: str) -> str:
    before, mark, _ = text.rpartition(CONTINUE_MARK)
    if not mark:
        raise _no_continuation("the template leaves the last message out")
    return before


def _no_continuation(reason: str) -> ApiError:
    message = f"`continue_final_message` can't be honoured: {reason}."
    return invalid("continue_final_message", message)
