"""`POST /tokenize` and `/detokenize` on the wire, in vLLM's shapes."""

from typing import Annotated, Any

from pydantic import WithJsonSchema

from mambad.server.schemas.chat import ChatTemplateFields
from mambad.server.schemas.common import WireModel

TokenIds = Annotated[Any, WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": 0}})]


class TokenizeRequest(ChatTemplateFields):
    """Text to encode, or messages of a chat. Only to a text the tokenizer adds its own tokens by default."""

    prompt: str | None = None
    model: str | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(WireModel):
    """Ids to decode; read by the route, which knows the vocabulary."""

    tokens: TokenIds = None
    model: str | None = None
