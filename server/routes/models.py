"""`GET /v1/models` and `/v1/models/{id}`: one card for each name under which the model is served.

Not before the engine is ready: routers and probes take a listed model for one that answers.
"""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mambad.server.answers import json_answer
from mambad.server.context import AppContext, context_of
from mambad.server.engine_port import require_ready
from mambad.server.openapi import SERVICE_ERRORS, json_answer_operation
from mambad.server.schemas.answers import ModelCard, ModelList

router = APIRouter()


@router.head("/v1/models", include_in_schema=False)
@router.get("/v1/models", openapi_extra=json_answer_operation(ModelList, errors=SERVICE_ERRORS))
async def list_models(request: Request) -> Response:
    """List the served names."""
    context = context_of(request)
    cards = [_card(context, name) for name in context.settings.served_model_names]
    return json_answer({"object": "list", "data": cards})


@router.get(
    "/v1/models/{model_id:path}", openapi_extra=json_answer_operation(ModelCard, errors=SERVICE_ERRORS)
)
async def retrieve_model(request: Request, model_id: str) -> Response:
    """Describe one served name, which may hold slashes."""
    context = context_of(request)
    return json_answer(_card(context, context.converter.model_name(model_id)))


def _card(context: AppContext, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(context.started_s),
        "owned_by": "mambad",
        "root": context.settings.model_name,
        "parent": None,
        "max_model_len": require_ready(context.engine).max_model_len,
        "permission": [],
    }
