"""The dialects by name, and which one a chat template speaks."""

from collections.abc import Callable, Mapping

from mambad.server.tool_parsers import hermes
from mambad.server.tool_parsers.base import ToolParser

DIALECTS: Mapping[str, tuple[Callable[[], ToolParser], tuple[str, ...]]] = {
    "hermes": (hermes.HermesParser, (hermes.OPEN, hermes.CLOSE)),
}
"""Name → what makes a parser, and the tags that it must see in the text."""


def dialect_of(configured: str, template: str) -> str | None:
    """Return the name of the dialect to parse, None for none.

    Args:
        configured: `--tool-call-parser`: a name, `none`, or `auto`: what the template contains.
        template: source of the chat template.
    """
    if configured != "auto":
        return configured if configured in DIALECTS else None
    return next((name for name, (_, tags) in DIALECTS.items() if tags[0] in template), None)
