"""What a constrained answer must look like, as it crosses from the front end to the engine: a frozen value.

Both sides compile the same text with the same limits (`mambad.engine.grammar`): the front end to refuse what
can't be served, the engine to serve it. No torch.
"""

from typing import Literal

import msgspec

FLEXIBLE_SPACE = r"\x20|\r?\n[\x20\t]{0,20}"
"""White space between the parts of JSON: a space, or the start of a line. More would go on without end."""

NO_SPACE = ""

MAX_COMPILE_CPU_S = 1.0
"""Processor time in which the front end must have compiled a grammar."""


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint.

    Attributes:
        kind: what `text` is: a JSON schema, a regular expression, a Lark grammar, or one in GBNF.
        text: the constraint itself.
        space: of JSON, a regular expression of what may stand between its parts; empty allows nothing.
        field: the request's field that asked for it, for messages.
    """

    kind: Literal["json", "regex", "lark", "gbnf"]
    text: str
    space: str = FLEXIBLE_SPACE
    field: str = "response_format"

    @property
    def key(self) -> tuple[str, str, str]:
        """What the compiled form depends on."""
        return self.kind, self.text, self.space
