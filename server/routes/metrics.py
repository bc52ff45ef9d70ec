"""`GET /metrics`: everything at once, in the text format of Prometheus, or in OpenMetrics by `Accept`."""

import asyncio
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mambad.server.context import context_of
from mambad.server.metrics import OPEN_METRICS, collect, render
from mambad.server.openapi import error_responses

router = APIRouter()


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics", response_class=PlainTextResponse, openapi_extra={"responses": error_responses(401)})
async def metrics(request: Request) -> Response:
    """Show all series; `?compat=none` leaves out those under other servers' names."""
    context = context_of(request)
    is_compatible = (
        context.settings.metrics_compat == "vllm" and request.query_params.get("compat", "vllm") == "vllm"
    )
    # Collected here, so that all numbers are of one moment; written out in a thread, which takes longer.
    families = collect(context, is_compatible)
    is_open = OPEN_METRICS in request.headers.get("accept", "")
    text, content_type = await asyncio.to_thread(partial(render, families, is_open))
    return Response(text, headers={"content-type": content_type})
