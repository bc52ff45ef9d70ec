"""What an answer must look like, on the wire: OpenAI's `response_format` and vLLM's `structured_outputs`.

Unlike elsewhere, a field that nobody knows is refused: it may have been meant to limit the answer.
"""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from mambad.server.schemas.common import WireModel


class ConstraintModel(WireModel):
    """An object of a constraint."""

    model_config = ConfigDict(extra="forbid")


class JsonSchemaFormat(ConstraintModel):
    """A schema and its name. The answer always keeps to the schema, whatever `strict` is."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    json_schema: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(ConstraintModel):
    """`json_object` and `json_schema` limit the answer, `text` does not."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(ConstraintModel):
    """Exactly one of `json`, `regex`, `choice`, `grammar` and `json_object`, and how JSON is spaced."""

    json_value: dict[str, Any] | str | None = Field(None, alias="json", description="A JSON schema.")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = Field(None, description="In Lark's notation, or in GBNF.")
    json_object: bool | None = None
    structural_tag: Any = Field(None, description="Not supported.")
    whitespace_pattern: str | None = Field(None, description="What may stand between the parts of JSON.")
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = Field(None, description="Not supported.")
    disable_fallback: bool | None = Field(None, description="There never is one.")
