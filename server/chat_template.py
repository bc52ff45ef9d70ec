"""Chat templates: Jinja source → the text of a prompt, with Transformers' conventions, in a sandbox.

A template comes from the checkpoint or the operator; from a request only where the operator trusts it. What
a template may do is bounded: no access to Python's internals, so many seconds, so many characters. Knows
nothing of HTTP.
"""

import datetime
import json
import threading
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_SECONDS = 5.0
MAX_CHARS = 16 * 2**20
MAX_TEMPLATE_CHARS = 256 * 1024
MAX_MESSAGE_CHARS = 500


class TemplateFaultError(Exception):
    """A template is wrong, refuses these messages, or takes too long; never leaves `server`."""


class ChatTemplate:
    """A compiled template. May be rendered by several threads at once.

    Attributes:
        source: its text.
        variables: names that it reads and does not set itself: `tools`, say.

    Raises:
        TemplateFaultError: it can't be compiled.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise TemplateFaultError(f"the template is longer than {MAX_TEMPLATE_CHARS} characters")
        self.source = source
        self._environment = _Environment()
        try:
            self._template = self._environment.from_string(source)
            self.variables = frozenset(meta.find_undeclared_variables(self._environment.parse(source)))
        except (jinja2.TemplateError, SyntaxError, RecursionError, ValueError, TypeError) as error:
            raise TemplateFaultError(_one_line(error)) from None

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return the text; `variables` hold plain JSON values only.

        Raises:
            TemplateFaultError: the template raised, or took too long or too much.
        """
        pieces, num_chars = [], 0
        self._environment.start_clock()
        try:
            for piece in self._template.generate(variables):
                num_chars += len(piece)
                if num_chars > MAX_CHARS:
                    raise TemplateFaultError(f"the text is longer than {MAX_CHARS} characters")
                pieces.append(piece)
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise TemplateFaultError(_one_line(error)) from None
        except (AttributeError, RecursionError, MemoryError) as error:
            raise TemplateFaultError(_one_line(error)) from None
        return "".join(pieces)


@lru_cache(maxsize=8)
def compiled(source: str) -> ChatTemplate:
    """Return a template that came with a request; the last few are kept."""
    return ChatTemplate(source)


class _Generation(Extension):
    """Lets `{% generation %}` stand, which marks what training learns; here it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """`namespace()` without underscored names."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError("a namespace holds no name that starts with _")
        super().__setitem__(name, value)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a clock that every loop and macro looks at."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension])
        self.filters["tojson"] = _tojson
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "namespace": _Namespace,
        }
        self._clock = threading.local()

    def start_clock(self) -> None:
        """Let this thread render for MAX_SECONDS from now on."""
        self._clock.deadline_s = time.monotonic() + MAX_SECONDS

    def tick(self) -> str:
        """Raise when the time is over."""
        if time.monotonic() > self._clock.deadline_s:
            raise TemplateFaultError(f"the template takes longer than {MAX_SECONDS:g} s")
        return ""

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Multiply, but not a text by a number that fills the memory."""
        sizes = [len(value) for value in (left, right) if isinstance(value, str | list | tuple)]
        counts = [value for value in (left, right) if isinstance(value, int)]
        if sizes and counts and sizes[0] * counts[0] > MAX_CHARS:
            raise TemplateFaultError(f"the template makes a text of more than {MAX_CHARS} characters")
        if operator == "**" and any(isinstance(value, int) and abs(value) > 1024 for value in counts):
            raise TemplateFaultError("the template makes too large a number")
        return super().call_binop(context, operator, left, right)

    def _generate(self, source: nodes.Template, *args: Any, **options: Any) -> str:
        """Compile; first make every loop and macro begin with a tick."""
        for node in source.find_all((nodes.For, nodes.Macro)):
            tick = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
            statement = nodes.ExprStmt(tick).set_lineno(node.lineno)
            node.body.insert(0, statement)  # type: ignore[attr-defined]
        source.set_environment(self)
        return super()._generate(source, *args, **options)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is: Jinja's own filter escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _one_line(error: Exception) -> str:
    text = " ".join((str(error) or type(error).__name__).split())[:MAX_MESSAGE_CHARS]
    is_own = isinstance(error, jinja2.TemplateError) and type(error) is jinja2.TemplateError
    return text if is_own else f"{type(error).__name__}: {text}"
