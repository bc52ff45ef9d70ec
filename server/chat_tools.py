"""`tools` and `tool_choice` → which functions may or must be called. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mambad.server.errors import ApiError, invalid
from mambad.server.schemas.chat import ChatRequest, Tool

Mode = Literal["none", "auto", "required", "named"]
LEGACY = ("functions", "function_call")
"""What tools were called once; refused, unless they ask for no call."""

NO_CALLS: tuple[Any, ...] = ("none", [])
CHOICES = "`none`, `auto`, `required`, a function or `allowed_tools`"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request wants of its tools.

    Attributes:
        mode: `none` makes no call, `auto` leaves it to the model, `required` makes at least one call, `named`
            one call of one function.
        tools: those that may be called.
        is_parallel: whether several calls may be made.
    """

    mode: Mode = "none"
    tools: Sequence[Tool] = ()
    is_parallel: bool = True

    @property
    def is_forced(self) -> bool:
        """Whether an answer without a call would be wrong."""
        return self.mode in ("required", "named")

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of a forced answer, as `tool_parsers.forced` reads it."""
        if self.mode == "named":
            return _parameters(self.tools[0])
        calls = [_call_schema(tool) for tool in self.tools]
        schema: dict[str, Any] = {"type": "array", "items": {"anyOf": calls}, "minItems": 1}
        return schema if self.is_parallel else schema | {"maxItems": 1}


def read_tools(wire: ChatRequest) -> ToolUse:
    """Return what a request wants of its tools.

    Raises:
        ApiError: 400 naming the field.
    """
    for name in LEGACY:
        value = getattr(wire, name)
        if value is not None and value not in NO_CALLS:
            message = f"`{name}` is not supported; use `tools` and `tool_choice`."
            raise invalid(name, message, "unsupported_parameter")
    tools, choice = wire.tools, wire.tool_choice
    if tools is None:
        if choice not in (None, "none"):
            raise invalid("tool_choice", "`tool_choice` needs `tools`.")
        return ToolUse()
    names = [tool.function.name for tool in tools]
    if not names:
        raise invalid("tools", "`tools` must hold at least one tool.")
    if len(set(names)) < len(names):
        raise invalid("tools", "Two of the `tools` have the same name.")
    is_parallel = wire.parallel_tool_calls is not False
    if choice is None or choice in ("auto", "none", "required"):
        return ToolUse(choice or "auto", tools, is_parallel)
    return _chosen(choice, tools, is_parallel)


def _chosen(choice: Any, tools: Sequence[Tool], is_parallel: bool) -> ToolUse:
    """Read the forms of `tool_choice` that are objects."""
    kind = choice.get("type") if isinstance(choice, dict) else None
    content = choice.get(kind) if kind in ("function", "allowed_tools") else None
    if not isinstance(content, dict):
        raise invalid("tool_choice", f"`tool_choice` must be {CHOICES}.")
    if kind == "function":
        return ToolUse("named", _by_name(tools, [content.get("name")]), is_parallel=False)
    mode, allowed = content.get("mode"), content.get("tools")
    if mode not in ("auto", "required") or not isinstance(allowed, list) or not allowed:
        raise invalid("tool_choice", "`allowed_tools` needs a `mode`, `auto` or `required`, and `tools`.")
    functions = [tool.get("function") if isinstance(tool, dict) else None for tool in allowed]
    names = [function.get("name") if isinstance(function, dict) else None for function in functions]
    return ToolUse(mode, _by_name(tools, names), is_parallel)


def _by_name(tools: Sequence[Tool], names: Sequence[Any]) -> list[Tool]:
    known = {tool.function.name: tool for tool in tools}
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise _unknown(name)
    return [known[name] for name in names]


def _unknown(name: Any) -> ApiError:
    shown = f"`{name[:64]}`" if isinstance(name, str) else "a function without a name"
    return invalid("tool_choice", f"`tool_choice` names {shown}, which is not among the `tools`.")


def _call_schema(tool: Tool) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": tool.function.name}, "arguments": _parameters(tool)},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _parameters(tool: Tool) -> dict[str, Any]:
    """Return the schema of a function's arguments, which are an object in any case."""
    return {"type": "object", **(tool.function.parameters or {})}
