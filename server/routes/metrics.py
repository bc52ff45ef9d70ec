"""`GET /metrics`: everything at once, in the text format of Prometheus."""

import asyncio
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mambad.server.context import context_of
from mambad.server.metrics import CONTENT_TYPE, collect, render

router = APIRouter()


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Show all series; `?compat=none` leaves out those under other servers' names."""
    context = context_of(request)
    is_compatible = (
        context.settings.metrics_compat == "vllm" and request.query_params.get("compat", "vllm") == "vllm"
    )
    # Collected here, so that all numbers are of one moment; written out in a thread, which takes longer.
    families = collect(context, is_compatible)
    text = await asyncio.to_thread(partial(render, families))
    return Response(text, headers={"content-type": CONTENT_TYPE})
