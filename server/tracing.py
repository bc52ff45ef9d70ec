"""Whether there are traces, and of which requests. OpenTelemetry is imported only where they are on.

A span covers a request for text from its first byte to its last; other paths have none.
"""

from typing import Any, Protocol
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from mambad.engine.errors import ConfigError
from mambad.server.request_record import Span

OPERATIONS = {
    "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
}
"""Path → what OpenTelemetry's conventions call what it does."""

TRACES_PATH = "/v1/traces"


class Tracer(Protocol):
    """Makes spans and sends them away."""

    def begin(self, route: str, headers: Headers) -> Span:
        """Open the span of a request for a traced route, within the trace that its headers name, if any."""
        ...

    def shut_down(self) -> None:
        """Send what is left, as far as that goes in a moment."""
        ...


def traced_route(scope: Any) -> str | None:
    """Return which of the traced routes a request is for, whatever a reverse proxy put before it."""
    if scope["method"] != "POST":
        return None
    return next((route for route in OPERATIONS if scope["path"].endswith(route)), None)


def make_tracer(endpoint: str | None) -> Tracer | None:
    """Return what `--otlp-traces-endpoint` asks for.

    Raises:
        ConfigError: the endpoint is none, or the libraries are missing.
    """
    if endpoint is None:
        return None
    url = traces_url(endpoint)
    try:
        # Here, so that nobody else pays for it.
        from mambad.server.tracing_otel import OtelTracer
    except ImportError as error:
        raise ConfigError(
            f"--otlp-traces-endpoint needs OpenTelemetry ({error}): pip install 'mambad[otel]'"
        ) from None
    return OtelTracer(url)


def traces_url(endpoint: str) -> str:
    """Return where spans are posted to: the endpoint, with the usual path if it has none.

    Raises:
        ConfigError: it is no HTTP URL.
    """
    try:
        parts = urlsplit(endpoint)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise ConfigError(
            f"--otlp-traces-endpoint is {endpoint!r}, it must be the http:// or https:// URL of a collector "
            "that takes OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces"
        )
    return endpoint if parts.path not in ("", "/") else parts._replace(path=TRACES_PATH).geturl()
