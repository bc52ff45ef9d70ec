"""`tools` and `tool_choice` of `/v1/responses` → those of a chat. Pure."""

from collections.abc import Sequence
from typing import Any

from mambad.server.errors import invalid
from mambad.server.schemas.chat import FunctionDefinition, Tool
from mambad.server.schemas.responses import FunctionTool

NEEDS_MORE = ("async", "defer_loading", "allowed_callers")
"""What would have to be done in another way, if it were asked for."""


def chat_tools(tools: Sequence[FunctionTool] | None) -> list[Tool] | None:
    """Return the tools as a chat names them; None if there are none.

    Raises:
        ApiError: 400 naming what a tool asks for in vain.
    """
    for place, tool in enumerate(tools or ()):
        for name in NEEDS_MORE:
            if (tool.model_extra or {}).get(name):
                path = f"tools.{place}.{name}"
                raise invalid(path, f"`{path}` is not supported by this server.", "unsupported_parameter")
    return [_tool(tool) for tool in tools or ()] or None


def chat_tool_choice(choice: Any, has_tools: bool) -> Any:
    """Return the choice as a chat names it: what a function is stands in an object of its own there."""
    if choice == "auto" and not has_tools:
        return None
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "function":
        return _function(choice)
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        allowed = [_function(tool) for tool in tools] if isinstance(tools, list) else None
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": allowed}}
    kind = choice.get("type")
    shown = f" of type `{kind[:64]}`" if isinstance(kind, str) else ""
    raise invalid("tool_choice", f"A `tool_choice`{shown} is not supported.", "unsupported_parameter")


def _tool(tool: FunctionTool) -> Tool:
    function = FunctionDefinition(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return Tool(type="function", function=function)


def _function(tool: Any) -> dict[str, Any]:
    name = tool.get("name") if isinstance(tool, dict) and tool.get("type") == "function" else None
    return {"type": "function", "function": {"name": name}}
