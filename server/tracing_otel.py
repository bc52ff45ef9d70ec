"""Spans by OpenTelemetry, sent as OTLP over HTTP. Imported only where traces are asked for.

Everything happens when a request begins and when it is over, nothing for a token. Spans are handed to a
thread that sends them in batches; what a slow or absent collector does not take in time is dropped there,
and no request waits for it. Sampler, headers, batches and the rest follow the `OTEL_*` variables.
"""

import logging
import threading
import time
from importlib.metadata import version

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers

from mambad.server.request_record import RequestRecord
from mambad.server.span_attributes import error_type_of, is_fault, span_attributes, span_name, timed_events
from mambad.server.tracing import OPERATIONS

logger = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT_S = 3.0
NS = 1_000_000_000


class OtelTracer:
    """Makes spans.

    Args:
        url: where they are posted to.
    """

    def __init__(self, url: str) -> None:
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        self._tracer = self._provider.get_tracer("mambad", version("mambad"))
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, route: str, headers: Headers) -> "OtelSpan":
        """See Tracer."""
        carrier = {"traceparent": headers.get("traceparent", "")}
        if "tracestate" in headers:
            carrier["tracestate"] = ",".join(headers.getlist("tracestate"))
        parent = self._propagator.extract(carrier, Context())
        operation, start_ns = OPERATIONS[route], time.time_ns()
        span = self._tracer.start_span(operation, parent, SpanKind.SERVER, start_time=start_ns)
        return OtelSpan(span, operation, route, start_ns - time.monotonic_ns())

    def shut_down(self) -> None:
        """See Tracer. A collector that hangs is not waited for."""
        sender = threading.Thread(target=self._provider.shutdown, name="mambad-traces-end", daemon=True)
        sender.start()
        sender.join(SHUTDOWN_TIMEOUT_S)
        if sender.is_alive():
            logger.warning("the traces of the last requests were not taken within %g s", SHUTDOWN_TIMEOUT_S)


class OtelSpan:
    """One request's span; see `request_record.Span`.

    Args:
        span: open.
        operation, route: what the request is for.
        epoch_ns: what to add to a monotonic time; the same for all times of the span, lest a wall clock that
            is set meanwhile tear them apart.
    """

    def __init__(self, span: trace.Span, operation: str, route: str, epoch_ns: int) -> None:
        self._span = span
        self._operation = operation
        self._route = route
        self._epoch_ns = epoch_ns

    @property
    def trace_id(self) -> str | None:
        """See Span. None where `OTEL_SDK_DISABLED` is set."""
        context = self._span.get_span_context()
        return trace.format_trace_id(context.trace_id) if context.is_valid else None

    def end(self, record: RequestRecord) -> None:
        """See Span."""
        span = self._span
        if not span.is_recording():
            return
        span.update_name(span_name(self._operation, record))
        span.set_attributes(span_attributes(self._operation, self._route, record))
        if record.generation is not None:
            for event in timed_events(record.generation):
                attributes = {"mambad.duration": event.duration_s, "mambad.choice.index": event.choice}
                span.add_event(event.name, attributes, self._time(event.at_s))
        if is_fault(record):
            span.set_status(Status(StatusCode.ERROR, error_type_of(record)))
        span.end(self._time(record.ended_s))

    def _time(self, monotonic_s: float) -> int:
        return self._epoch_ns + int(monotonic_s * NS)


def _resource() -> Resource:
    """Return what the spans say of this process: `OTEL_SERVICE_NAME` and so on, or our own name."""
    resource = Resource.create({SERVICE_VERSION: version("mambad")})
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "mambad"}))
    return resource
