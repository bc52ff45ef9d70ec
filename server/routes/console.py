"""`GET /` and `/console/NAME`: the console."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mambad.server.console_files import FILES, HEADERS, PAGE, StaticFile
from mambad.server.errors import ApiError

router = APIRouter()


@router.head("/", include_in_schema=False)
@router.get("/", include_in_schema=False)
async def page(request: Request) -> Response:
    """Answer with the console's page."""
    return _answer(request, FILES[PAGE])


@router.head("/console/{name}", include_in_schema=False)
@router.get("/console/{name}", include_in_schema=False)
async def file(request: Request, name: str) -> Response:
    """Answer with a script or a style sheet."""
    found = FILES.get(name)
    if found is None:
        raise ApiError(404, "There is nothing at this path.", code="not_found")
    return _answer(request, found)


def _answer(request: Request, found: StaticFile) -> Response:
    headers = HEADERS | {"etag": found.etag}
    if found.is_known_to(request.headers.get("if-none-match", "")):
        return Response(status_code=304, headers=headers)
    return Response(found.body, media_type=found.media_type, headers=headers)
