"""`POST /tokenize`, `/detokenize` and `GET /tokenizer_info`, in vLLM's shapes."""

from functools import partial

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mambad.engine.messages import EngineInfo
from mambad.server.answers import json_answer
from mambad.server.context import AppContext, context_of
from mambad.server.engine_port import info_of
from mambad.server.errors import invalid
from mambad.server.json_body import parse_object
from mambad.server.openapi import SERVICE_ERRORS, json_answer_operation, json_operation
from mambad.server.prompts import check_token_ids
from mambad.server.sampling import default_to
from mambad.server.schemas.answers import DetokenizeAnswer, TokenizeAnswer, TokenizerInfo
from mambad.server.schemas.tokens import DetokenizeRequest, TokenizeRequest

router = APIRouter()


@router.post("/tokenize", openapi_extra=json_operation(TokenizeRequest, answer=TokenizeAnswer))
async def tokenize(request: Request) -> Response:
    """Return the ids of a text."""
    context = context_of(request)
    info = info_of(context.engine)
    async with context.bodies.read(request) as raw:
        body = await context.convert(request, len(raw), partial(_tokenize, context, info, raw))
    return Response(body, media_type="application/json")


@router.post("/detokenize", openapi_extra=json_operation(DetokenizeRequest, answer=DetokenizeAnswer))
async def detokenize(request: Request) -> Response:
    """Return the text of ids."""
    context = context_of(request)
    info = info_of(context.engine)
    async with context.bodies.read(request) as raw:
        body = await context.convert(request, len(raw), partial(_detokenize, context, info, raw))
    return Response(body, media_type="application/json")


@router.get("/tokenizer_info", openapi_extra=json_answer_operation(TokenizerInfo, errors=SERVICE_ERRORS))
async def tokenizer_info(request: Request) -> Response:
    """Name the special tokens."""
    context = context_of(request)
    text, template = context.text, context.templates.default
    info = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": text.bos_token,
        "eos_token": text.eos_token,
        "pad_token": text.pad_token,
        "chat_template": None if template is None else template.source,
    }
    return json_answer(info)


def _tokenize(context: AppContext, info: EngineInfo, raw: bytes) -> bytes:
    wire = TokenizeRequest.model_validate(parse_object(raw))
    context.converter.field_policy.check(wire.model_extra or {})
    context.converter.model_name(wire.model)
    if (wire.prompt is None) == (wire.messages is None):
        raise invalid("prompt", "Either `prompt`, a string, or `messages` must be given.")
    if wire.prompt is None:
        token_ids = context.chats.prompt_ids(wire)
    else:
        token_ids = context.text.encode(wire.prompt, default_to(wire.add_special_tokens, True))
    tokens = [context.text.token(token_id) for token_id in token_ids] if wire.return_token_strs else None
    answer = {
        "count": len(token_ids),
        "max_model_len": info.max_model_len,
        "tokens": token_ids,
        "token_strs": tokens,
    }
    return orjson.dumps(answer)


def _detokenize(context: AppContext, info: EngineInfo, raw: bytes) -> bytes:
    wire = DetokenizeRequest.model_validate(parse_object(raw))
    context.converter.field_policy.check(wire.model_extra or {})
    context.converter.model_name(wire.model)
    if not isinstance(wire.tokens, list):
        raise invalid("tokens", "`tokens` must be a list of token ids.")
    check_token_ids("tokens", wire.tokens, info.vocab_size)
    return orjson.dumps({"prompt": context.text.decode(wire.tokens)})
