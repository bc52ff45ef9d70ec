"""The native series of what the HTTP side counts and times itself."""

import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from mambad.engine.outputs import Histogram
from mambad.server.metric_families import Labels, counters, gauge, histogram
from mambad.server.request_metrics import RequestSnapshot
from mambad.server.request_record import CUT_OFF

HISTOGRAMS = {
    "time_to_first_token_s": (
        "mambad_time_to_first_token_seconds",
        "Time from the arrival of a request to its first token.",
    ),
    "inter_token_latency_s": (
        "mambad_inter_token_latency_seconds",
        "Time between two tokens of a request.",
    ),
    "duration_s": (
        "mambad_request_duration_seconds",
        "Time from the arrival of a request to its last token.",
    ),
    "queue_s": ("mambad_request_queue_duration_seconds", "Time that a request waited for a slot."),
    "prefill_s": ("mambad_request_prefill_duration_seconds", "Time from the slot to the first token."),
    "decode_s": ("mambad_request_decode_duration_seconds", "Time from the first token to the last."),
    "prompt_tokens": ("mambad_request_prompt_tokens", "Prompt tokens of a finished request."),
    "generation_tokens": ("mambad_request_generation_tokens", "Generated tokens of a finished request."),
}
ANSWER_ROUTES = ("/v1/completions", "/v1/chat/completions", "/v1/responses")
ANSWER_CODES = (200, 400, 401, 404, 429, CUT_OFF, 500, 503)
USUAL_ROUTES = (
    ("/v1/models", "GET"),
    ("/v1/models/{model_id:path}", "GET"),
    ("/tokenize", "POST"),
    ("/detokenize", "POST"),
)


def request_families(timings: Mapping[str, Histogram], labels: Labels) -> Iterator[Metric]:
    """Yield the families of one engine's requests."""
    for key, (name, text) in HISTOGRAMS.items():
        yield histogram(name, text, labels, timings[key])


def http_families(snapshot: RequestSnapshot, is_draining: bool, own_version: str) -> Iterator[Metric]:
    """Yield the families that carry no model's name."""
    rejected = {reason: float(count) for reason, count in snapshot.rejected.items()}
    text = "Requests refused before they ran, by reason."
    yield counters("mambad_requests_rejected", text, {}, "reason", rejected)
    # There from the start, so that a rate sees the first of them.
    answers = {(route, "POST", code): 0 for route in ANSWER_ROUTES for code in ANSWER_CODES}
    answers |= {(route, method, 200): 0 for route, method in USUAL_ROUTES}
    answers |= snapshot.http_requests
    requests = CounterMetricFamily(
        "mambad_http_requests",
        "Answers, by route, method and status; 499: the client had gone.",
        labels=["route", "method", "code"],
    )
    for (route, method, status), count in answers.items():
        requests.add_metric([route, method, str(status)], count)
    yield requests
    yield gauge("mambad_draining", "1 while the server is shutting down.", {}, float(is_draining))
    info = {
        "version": own_version,
        "revision": "unknown",
        "python": platform.python_version(),
        "torch": _version_of("torch"),
    }
    build = GaugeMetricFamily("mambad_build_info", "Versions.", labels=list(info))
    build.add_metric(list(info.values()), 1)
    yield build


def _version_of(package: str) -> str:
    """Return a version without importing the package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
