"""`GET /docs`: the page that shows `/openapi.json`."""

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from mambad.server.docs_page import CONTENT_POLICY, PAGE

router = APIRouter()


@router.head("/docs", include_in_schema=False)
@router.get("/docs", include_in_schema=False)
async def docs() -> HTMLResponse:
    """Show the paths and their bodies."""
    return HTMLResponse(PAGE, headers={"content-security-policy": CONTENT_POLICY})
