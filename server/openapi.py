"""The description at `/openapi.json`: handlers read bodies themselves, so their shapes are added here."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

REF = "#/components/schemas/{model}"
ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
ERRORS = {
    400: "The request can't be served as asked.",
    401: "The API key is missing or wrong.",
    403: "The Host, Origin or path is not allowed.",
    404: "There is no such model.",
    408: "The request took longer than the server allows.",
    413: "The body is too large.",
    415: "The body is not plain JSON.",
    429: "Too much is waiting; come back later.",
    500: "The server failed.",
    503: "The model is loading, draining or gone.",
}
SERVICE_ERRORS = (401, 403, 404, 500, 503)


def json_operation(model: type[BaseModel], *, streams: bool = False) -> dict[str, Any]:
    """Return the description of a POST whose body is `model`."""
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    body = {"schema": {"$ref": REF.format(model=model.__name__)}}
    return {
        "requestBody": {"required": True, "content": {"application/json": body}},
        "responses": {"200": {"description": "The answer.", "content": content}, **error_responses(*ERRORS)},
    }


def error_responses(*statuses: int) -> dict[str, Any]:
    """Return the descriptions of error answers."""
    content = {"application/json": {"schema": {"$ref": REF.format(model="Error")}}}
    return {str(status): {"description": ERRORS[status], "content": content} for status in statuses}


def describe_bodies(app: FastAPI, models: Sequence[type[BaseModel]]) -> None:
    """Make `/openapi.json` hold the models that `json_operation` names."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=REF)
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            schemas |= {"Error": ERROR_SCHEMA, **definitions["$defs"]}
            _drop_422(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _drop_422(schema: dict[str, Any]) -> None:
    """Take out FastAPI's own validation error: here it is a 400 in the common form."""
    for operations in schema["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)
