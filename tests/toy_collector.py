"""A collector of traces: takes OTLP over HTTP on a free port and keeps the spans, or takes nothing at all."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass
class Collector:
    """What was received.

    Attributes:
        url: where to send spans, without a path.
        status: answered to whatever comes.
        hangs: set while no answer is given.
        paths, bodies: of the requests so far.
    """

    url: str = ""
    status: int = 200
    hangs: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    paths: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def requests(self) -> list[ExportTraceServiceRequest]:
        """Return what was posted."""
        return [ExportTraceServiceRequest.FromString(body) for body in self.bodies]

    def spans(self) -> list[Any]:
        """Return all spans, in order of arrival."""
        return [
            span
            for request in self.requests()
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def resource(self) -> dict[str, Any]:
        """Return what the first batch says of its sender."""
        return attributes(self.requests()[0].resource_spans[0].resource)


def attributes(item: Any) -> dict[str, Any]:
    """Return the attributes of a span, an event or a resource as plain values."""
    return {entry.key: _plain(entry.value) for entry in item.attributes}


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    return getattr(value, kind)


@contextlib.contextmanager
def run_collector() -> Iterator[Collector]:
    """Receive until the block ends."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.paths.append(self.path)
            collector.bodies.append(body)
            if collector.hangs.is_set():
                collector.released.wait(30)
            with contextlib.suppress(OSError):
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=lambda: server.serve_forever(0.02))
    thread.start()
    try:
        yield collector
    finally:
        collector.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
