"""`response_format`, `structured_outputs` and forced tools → the grammar that the engine is given. Pure.

Sizes and shapes are checked here, in no time; whether the grammar can be compiled is for `grammar_check` to
find out. A request that asks for a constraint gets it or a 400, never an answer without it.
"""

import re
from typing import Any

import orjson

from mambad.engine.grammar_spec import FLEXIBLE_SPACE, NO_SPACE, Grammar
from mambad.server.errors import ApiError, invalid
from mambad.server.schemas.structured import ResponseFormat, StructuredOutputs

MAX_GRAMMAR_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 100
ANY_OBJECT = {"type": "object"}

_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object")


def read_constraint(
    response_format: ResponseFormat | None, structured_outputs: StructuredOutputs | None
) -> Grammar | None:
    """Return what a request wants its answer to look like; None lets it be anything.

    Raises:
        ApiError: 400 naming the field.
    """
    if response_format is not None and response_format.type != "text":
        if structured_outputs is not None:
            raise invalid(
                "structured_outputs", "`structured_outputs` and `response_format` can't be combined."
            )
        return _of_format(response_format)
    return None if structured_outputs is None else _of_structured(structured_outputs)


def schema_constraint(schema: dict[str, Any], field: str, space: str = FLEXIBLE_SPACE) -> Grammar:
    """Return the constraint to JSON of a schema; properties come in the schema's order.

    Args:
        schema: a JSON schema.
        field: the request's field that it comes from.
        space: as in Grammar.

    Raises:
        ApiError: 400 for a schema that is too large or too deep.
    """
    try:
        text = orjson.dumps(_prepared(schema, field)).decode()
    except (orjson.JSONEncodeError, RecursionError):
        raise _too_deep(field) from None
    return _checked(Grammar(kind="json", text=text, space=space, field=field))


def _of_format(wire: ResponseFormat) -> Grammar:
    field = "response_format.json_schema"
    if wire.type == "json_object":
        return schema_constraint(ANY_OBJECT, "response_format")
    if wire.json_schema is None:
        raise invalid(field, f"`response_format` of type `json_schema` needs `{field}`.")
    return schema_constraint(wire.json_schema.json_schema, f"{field}.schema")


def _of_structured(wire: StructuredOutputs) -> Grammar:
    given = [name for name in _CONSTRAINTS if _is_given(wire, name)]
    for name in ("structural_tag", "disable_additional_properties"):
        if getattr(wire, name) not in (None, False):
            raise _unsupported(f"structured_outputs.{name}")
    if len(given) != 1:
        names = ", ".join(f"`{name}`" for name in _CONSTRAINTS)
        raise invalid("structured_outputs", f"`structured_outputs` needs exactly one of {names}.")
    name, field = given[0], f"structured_outputs.{given[0]}"
    if name in ("json", "json_object"):
        return schema_constraint(_schema_of(wire, field), field, _space(wire))
    if wire.whitespace_pattern is not None or wire.disable_any_whitespace:
        raise invalid("structured_outputs", f"The white space of `{field}` can't be set: it is not JSON.")
    if name == "choice":
        return _checked(Grammar(kind="regex", text=_choice(wire.choice or [], field), field=field))
    if name == "regex":
        return _checked(Grammar(kind="regex", text=wire.regex or "", field=field))
    text = wire.grammar or ""
    return _checked(Grammar(kind="gbnf" if _GBNF_RULE.search(text) else "lark", text=text, field=field))


def _is_given(wire: StructuredOutputs, name: str) -> bool:
    if name == "json_object":
        return bool(wire.json_object)
    return getattr(wire, "json_value" if name == "json" else name) is not None


def _schema_of(wire: StructuredOutputs, field: str) -> dict[str, Any]:
    schema: Any = ANY_OBJECT if wire.json_value is None else wire.json_value
    if isinstance(schema, str):
        try:
            schema = orjson.loads(schema)
        except orjson.JSONDecodeError:
            raise invalid(field, f"`{field}` is a string that holds no JSON.") from None
    if not isinstance(schema, dict):
        raise invalid(field, f"`{field}` must be a JSON schema: an object.")
    return schema


def _space(wire: StructuredOutputs) -> str:
    if wire.disable_any_whitespace:
        if wire.whitespace_pattern is not None:
            name = "structured_outputs.whitespace_pattern"
            raise invalid(name, f"`{name}` and `disable_any_whitespace` can't be combined.")
        return NO_SPACE
    return FLEXIBLE_SPACE if wire.whitespace_pattern is None else wire.whitespace_pattern


def _choice(choices: list[str], field: str) -> str:
    """Return a regular expression of exactly these texts."""
    if not choices or not all(choices):
        raise invalid(field, f"`{field}` must hold at least one text, and no empty one.")
    if sum(map(len, choices)) > MAX_GRAMMAR_BYTES:
        raise _too_large(field)
    return "|".join("".join(map(_escaped, choice)) for choice in choices)


def _escaped(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"


def _prepared(schema: dict[str, Any], field: str) -> dict[str, Any]:
    """Return a schema with `anyOf` for each `oneOf` that names its discriminator: that means the same."""
    copy: dict[str, Any] = {}
    waiting: list[tuple[Any, Any, int]] = [(schema, copy, 1)]
    while waiting:
        source, target, depth = waiting.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise _too_deep(field)
        items = source.items() if isinstance(source, dict) else enumerate(source)
        is_named = isinstance(source, dict) and _is_discriminated(source)
        for key, value in items:
            child: Any = value
            if isinstance(value, dict | list):
                child = {} if isinstance(value, dict) else []
                waiting.append((value, child, depth + 1))
            if isinstance(target, list):
                target.append(child)
            else:
                target["anyOf" if is_named and key == "oneOf" else key] = child
    return copy


def _is_discriminated(schema: dict[str, Any]) -> bool:
    is_named = isinstance(schema.get("discriminator"), dict) and isinstance(schema.get("oneOf"), list)
    return is_named and "anyOf" not in schema


def _checked(grammar: Grammar) -> Grammar:
    if len(grammar.text.encode()) + len(grammar.space) > MAX_GRAMMAR_BYTES:
        raise _too_large(grammar.field)
    return grammar


def _too_large(field: str) -> ApiError:
    return invalid(field, f"`{field}` has more than {MAX_GRAMMAR_BYTES // 1024} kB.", "invalid_grammar")


def _too_deep(field: str) -> ApiError:
    return invalid(field, f"`{field}` is nested more than {MAX_SCHEMA_DEPTH} deep.", "invalid_grammar")


def _unsupported(field: str) -> ApiError:
    return invalid(field, f"`{field}` is not supported by this server.", "unsupported_parameter")
