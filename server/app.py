"""create_app: the ASGI application, made of its routes, its middleware and one shared context.

Starts and stops nothing: whoever runs the application owns the engine and the server around it.
"""

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mambad.engine.errors import EngineError
from mambad.server.access import AccessMiddleware, KeyRing
from mambad.server.context import AppContext, context_of
from mambad.server.engine_port import EnginePort
from mambad.server.errors import ApiError, api_error_of, error_response
from mambad.server.middleware import CLIENT_GONE, AnswerMiddleware, RequestIdMiddleware
from mambad.server.openapi import describe_bodies
from mambad.server.routes import completions, debug, health, metrics, models, state, tokens
from mambad.server.schemas.completions import CompletionRequest
from mambad.server.schemas.tokens import DetokenizeRequest, TokenizeRequest
from mambad.server.settings import AppSettings
from mambad.server.tokenizer import TextTokenizer

HANDLED = (ApiError, EngineError, ValidationError, RequestValidationError, HTTPException)


def create_app(engine: EnginePort, text: TextTokenizer, settings: AppSettings) -> FastAPI:
    """Return the application.

    Args:
        engine: need not be ready, nor started: what needs it answers 503 until then.
        text: the model's tokenizer.
        settings: see there.
    """
    context = AppContext(engine, text, settings, KeyRing(settings.api_keys), KeyRing(settings.admin_api_keys))
    app = FastAPI(
        title="mambad",
        version=context.version,
        root_path=settings.root_path,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = context
    for module in (completions, models, tokens, health, metrics, state):
        app.include_router(module.router)
    if settings.enable_fault_injection:
        app.include_router(debug.router)
    for kind in HANDLED:
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    describe_bodies(app, (CompletionRequest, TokenizeRequest, DetokenizeRequest))
    _add_middleware(app, context)
    return app


def _add_middleware(app: FastAPI, context: AppContext) -> None:
    """Wrap the application; what is added last is the outermost."""
    settings = context.settings
    app.add_middleware(
        AccessMiddleware, settings=settings, api_keys=context.api_keys, admin_keys=context.admin_keys
    )
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=("x-request-id",),
        )
    app.add_middleware(AnswerMiddleware, metrics=context.metrics)
    app.add_middleware(RequestIdMiddleware)


async def _answer_error(request: Request, exc: Exception) -> Response:
    """Answer what was raised on purpose."""
    error = api_error_of(exc)
    if request.method == "POST":
        context_of(request).metrics.count_rejection(error)
    return error_response(error)


async def _answer_nobody(request: Request, exc: Exception) -> Response:
    """The client has gone: what is returned here is only counted."""
    return Response(status_code=CLIENT_GONE)
