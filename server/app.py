"""create_app: the ASGI application, made of its routes, its middleware and one shared context.

Starts and stops nothing: whoever runs the application owns the engine and the server around it.
"""

from collections.abc import Iterable
from functools import partial

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mambad.engine.errors import EngineError
from mambad.server.access import AccessMiddleware, KeyRing
from mambad.server.chat_template_files import ChatTemplates
from mambad.server.context import AppContext, context_of
from mambad.server.engine_port import EnginePort
from mambad.server.errors import ApiError, api_error_of, error_response
from mambad.server.load_header import LoadHeaderMiddleware
from mambad.server.middleware import CLIENT_GONE, AnswerMiddleware, RequestIdMiddleware, route_of
from mambad.server.openapi import describe_bodies
from mambad.server.openapi_rules import Limits
from mambad.server.routes import (
    admin,
    chat,
    completions,
    console,
    debug,
    docs,
    health,
    metrics,
    models,
    responses,
    state,
    tokens,
)
from mambad.server.settings import AppSettings
from mambad.server.tokenizer import TextTokenizer

HANDLED = (ApiError, EngineError, ValidationError, RequestValidationError, HTTPException)


def create_app(
    engine: EnginePort, text: TextTokenizer, settings: AppSettings, templates: ChatTemplates | None = None
) -> FastAPI:
    """Return the application.

    Args:
        engine: need not be ready, nor started: what needs it answers 503 until then.
        text: the model's tokenizer.
        settings: see there.
        templates: the model's chat templates; a base model has none.
    """
    api_keys, admin_keys = KeyRing(settings.api_keys), KeyRing(settings.admin_api_keys)
    context = AppContext(engine, text, settings, api_keys, admin_keys, templates or ChatTemplates())
    app = FastAPI(
        title="mambad",
        version=context.version,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json" if settings.docs else None,
        redirect_slashes=False,
    )
    app.root_path = settings.root_path
    app.state.context = context
    modules = [completions, chat, responses, models, tokens, health, metrics, state, admin]
    modules += [docs] if settings.docs else []
    modules += [console] if settings.console else []
    modules += [debug] if settings.enable_fault_injection else []
    for module in modules:
        app.include_router(module.router)
    for kind in HANDLED:
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    app.state.methods = _methods_by_path(
        [*app.routes, *(route for each in modules for route in each.router.routes)]
    )
    describe_bodies(app, partial(_limits, context))
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
    app.add_middleware(LoadHeaderMiddleware, engine=context.engine)
    app.add_middleware(AnswerMiddleware, metrics=context.metrics)
    app.add_middleware(RequestIdMiddleware)


def _limits(context: AppContext) -> Limits:
    info, settings = context.engine.info, context.settings
    vocab_size = None if info is None else info.vocab_size
    return Limits(vocab_size, settings.max_logprobs, settings.scheduling_policy == "priority")


def _methods_by_path(routes: Iterable[BaseRoute]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for route in routes:
        if isinstance(route, Route):
            found.setdefault(route.path, set()).update(route.methods or ())
    return {path: sorted(methods) for path, methods in found.items()}


async def _answer_error(request: Request, exc: Exception) -> Response:
    """Answer what was raised on purpose."""
    error = api_error_of(exc)
    methods = request.app.state.methods.get(route_of(request.scope))
    if error.status == 405 and methods is not None:
        # Starlette names the methods of one route; a path may have several.
        error.headers = {"allow": ", ".join(methods)}
    if request.method == "POST":
        context_of(request).metrics.count_rejection(error)
    return error_response(error)


async def _answer_nobody(request: Request, exc: Exception) -> Response:
    """The client has gone: what is returned here is only counted."""
    return Response(status_code=CLIENT_GONE)
