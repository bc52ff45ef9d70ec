"""JSON answers: one way to write them, without the detour through a model."""

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(orjson.dumps(content), status, dict(headers or {}), media_type="application/json")
