"""The description at `/openapi.json`: handlers read bodies themselves, so their shapes are added here.

Every status that can occur is described. The wire models say what a field may be; what they can't say (that
two fields belong together) stands in their descriptions.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from mambad.server.openapi_rules import Limits, refine
from mambad.server.schemas.answers import ErrorAnswer

REF = "#/components/schemas/{model}"

DESCRIPTION = """\
Language models with a recurrent state behind the OpenAI API. A key, where one is asked for, is sent as
`Authorization: Bearer KEY`. Every answer that is not 2xx has the form
`{"error": {"message", "type", "param", "code"}}`, and every answer carries `X-Request-Id`.
"""
ERRORS = {
    400: "The request can't be served as asked.",
    401: "The API key is missing or wrong.",
    403: "The Host, Origin or path is not allowed.",
    404: "There is no such model or object.",
    408: "The request took longer than the server allows.",
    413: "The body is too large.",
    415: "The body is not plain JSON.",
    429: "Too much is waiting; come back later.",
    431: "The headers are too large.",
    500: "The server failed.",
    503: "The model is loading, draining or gone.",
}
ALWAYS = (400, 403, 431, 500)
SERVICE_ERRORS = (401, 404, 503)
_named: dict[str, type[BaseModel]] = {}
"""Models to which operations refer, by name; filled while the routes are imported."""
HEADER = {"schema": {"type": "string"}}
RETRY_AFTER = {"description": "Seconds after which to come back.", "schema": {"type": "integer"}}


def json_operation(
    model: type[BaseModel],
    *,
    answer: type[BaseModel] | None = None,
    streams: bool = False,
    chunk: type[BaseModel] | None = None,
    errors: Sequence[int] = tuple(ERRORS),
) -> dict[str, Any]:
    """Return the description of a POST whose body is `model`.

    Args:
        model: the body.
        answer: the body of a 200; None = some object.
        streams: whether the answer may be a stream of events.
        chunk: what an event holds.
        errors: what else may come, besides what always may.
    """
    described = json_answer_operation(answer, errors=errors)
    content = described["responses"]["200"]["content"]
    if streams:
        content["text/event-stream"] = {"schema": _event_schema(chunk)}
    described["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": _reference(model)}},
    }
    return described


def json_answer_operation(
    answer: type[BaseModel] | None = None, *, errors: Sequence[int] = ()
) -> dict[str, Any]:
    """Return the description of an operation that answers 200 with `answer`."""
    schema = {"type": "object"} if answer is None else _reference(answer)
    success = {
        "description": "The answer.",
        "headers": {"X-Request-Id": HEADER},
        "content": {"application/json": {"schema": schema}},
    }
    responses = {"200": success, **error_responses(*errors)}
    return {"responses": responses}


def link(path: str, method: str, **parameters: str) -> dict[str, Any]:
    """Return a link to another operation, whose parameters stand in the answer; each is a JSON pointer."""
    escaped = path.replace("~", "~0").replace("/", "~1")
    return {
        "operationRef": f"#/paths/{escaped}/{method}",
        "parameters": {name: f"$response.body#{pointer}" for name, pointer in parameters.items()},
    }


def error_responses(*statuses: int) -> dict[str, Any]:
    """Return the descriptions of error answers: these, and those that always may come."""
    content = {"application/json": {"schema": _reference(ErrorAnswer)}}
    found = {}
    for status in sorted({*statuses, *ALWAYS}):
        headers: dict[str, Any] = {"X-Request-Id": HEADER}
        if status in (429, 503):
            headers["Retry-After"] = RETRY_AFTER
        found[str(status)] = {"description": ERRORS[status], "headers": headers, "content": content}
    return found


def describe_bodies(app: FastAPI, limits: Callable[[], Limits]) -> None:
    """Make `/openapi.json` hold the models that the operations name, within the limits of this server."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            known = limits()
            schema = get_openapi(
                title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes
            )
            models = [(model, "validation") for _, model in sorted(_named.items())]
            _, definitions = models_json_schema(models, ref_template=REF)  # type: ignore[arg-type]
            components = schema.setdefault("components", {})
            components.setdefault("schemas", {}).update(definitions["$defs"])
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            refine(components["schemas"], known)
            _drop_422(schema)
            if known.vocab_size is None:
                return schema
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _event_schema(chunk: type[BaseModel] | None) -> dict[str, Any]:
    """Return the schema of one event of a stream: its `data` is JSON, or says that the stream has ended."""
    bodies = [{"type": "object"} if chunk is None else _reference(chunk), _reference(ErrorAnswer)]
    text = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": bodies}}
    data = {"anyOf": [text, {"const": "[DONE]"}], "description": "`[DONE]` is always the last."}
    return {"type": "object", "required": ["data"], "properties": {"data": data}}


def _reference(model: type[BaseModel]) -> dict[str, Any]:
    known = _named.setdefault(model.__name__, model)
    assert known is model, f"two models are called {model.__name__}"
    return {"$ref": REF.format(model=model.__name__)}


def _operations(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in schema["paths"].values():
        yield from path.values()


def _drop_422(schema: dict[str, Any]) -> None:
    """Take out FastAPI's own validation error: here it is a 400 in the common form."""
    for operation in _operations(schema):
        operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)
