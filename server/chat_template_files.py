"""Finds a model's chat templates, and the special tokens that they may write.

Reads files only. In Hugging Face layout a template stands in `chat_template.jinja`, in
`additional_chat_templates/NAME.jinja`, in `chat_template.json`, or in `tokenizer_config.json`, as a text or
as a list of named ones. `--chat-template` takes the place of them all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from mambad.engine.errors import ConfigError, LoadError
from mambad.server.chat_template import ChatTemplate, TemplateFaultError

DEFAULT, TOOL_USE = "default", "tool_use"
TOKEN_FILES = ("special_tokens_map.json", "tokenizer_config.json")
JINJA_MARKS = ("{{", "{%", "{#", "\n")


@dataclass(frozen=True, slots=True)
class ChatTemplates:
    """The templates of a model.

    Attributes:
        by_name: `default`, and any others that the checkpoint names.
        special_tokens: `bos_token` and so on, with their texts.
    """

    by_name: Mapping[str, ChatTemplate] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    @property
    def default(self) -> ChatTemplate | None:
        """The template of a conversation without tools; None for a base model."""
        return self.by_name.get(DEFAULT)

    def choose(self, has_tools: bool) -> ChatTemplate | None:
        """Return the template for a request."""
        if has_tools and TOOL_USE in self.by_name:
            return self.by_name[TOOL_USE]
        return self.default


def load_chat_templates(folder: Path, override: str | None = None) -> ChatTemplates:
    """Return the templates of a model folder.

    Args:
        folder: in Hugging Face layout.
        override: `--chat-template`: a file, or the template itself.

    Raises:
        ConfigError: `--chat-template` can't be used.
        LoadError: a template of the checkpoint can't be used.
    """
    tokens: dict[str, str] = {}
    for name in TOKEN_FILES:
        tokens |= _special_tokens(_object(folder / name))
    if override is not None:
        try:
            return ChatTemplates({DEFAULT: ChatTemplate(_read_override(override))}, tokens)
        except TemplateFaultError as error:
            raise ConfigError(f"--chat-template: {error}") from None
    compiled = {}
    for name, source in _sources(folder).items():
        try:
            compiled[name] = ChatTemplate(source)
        except TemplateFaultError as error:
            raise LoadError(f"the chat template `{name}` in {folder}: {error}") from None
    return ChatTemplates(compiled, tokens)


def _sources(folder: Path) -> dict[str, str]:
    """Return the checkpoint's templates by name; files of their own win over entries of the configuration."""
    found: dict[str, str] = {}
    for name in ("tokenizer_config.json", "chat_template.json"):
        entry = _object(folder / name).get("chat_template")
        if isinstance(entry, str):
            found[DEFAULT] = entry
        elif isinstance(entry, list):
            named = [item for item in entry if isinstance(item, dict)]
            found |= {item["name"]: item["template"] for item in named if {"name", "template"} <= item.keys()}
        elif isinstance(entry, dict):
            found |= entry
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = _text(path)
    if (folder / "chat_template.jinja").is_file():
        found[DEFAULT] = _text(folder / "chat_template.jinja")
    return {name: source for name, source in found.items() if isinstance(source, str)}


def _special_tokens(content: Mapping[str, Any]) -> dict[str, str]:
    """Return entries like `"eos_token": "…"` or `{"content": "…"}`."""
    found = {}
    for name, value in content.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _read_override(text: str) -> str:
    """Return the template that `--chat-template` names, or is."""
    if any(mark in text for mark in JINJA_MARKS):
        return text
    try:
        return Path(text).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--chat-template: {text} is no template, and no file: {reason}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{path} can't be read: {error}") from None


def _object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty without such a file."""
    if not path.is_file():
        return {}
    try:
        content = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise LoadError(f"{path} is no JSON: {error}") from None
    return content if isinstance(content, dict) else {}
