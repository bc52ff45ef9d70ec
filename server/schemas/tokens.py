"""`POST /tokenize` and `/detokenize` on the wire, in vLLM's shapes."""

from typing import Annotated, Any

from pydantic import WithJsonSchema

from mambad.server.schemas.common import WireModel

TokenIds = Annotated[Any, WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": 0}})]


class TokenizeRequest(WireModel):
    """Text to encode."""

    prompt: str | None = None
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(WireModel):
    """Ids to decode; read by the route, which knows the vocabulary."""

    tokens: TokenIds = None
    model: str | None = None
