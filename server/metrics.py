"""Prometheus: all numbers of the server at one moment, as metric families and as text.

Owns no numbers: they come from the engine's newest report and from RequestMetrics. No object of the
Prometheus client is touched while a request runs.
"""

from collections.abc import Iterable, Iterator

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics

from mambad.server.context import AppContext
from mambad.server.metrics_engine import engine_families
from mambad.server.metrics_requests import http_families, request_families
from mambad.server.metrics_vllm import vllm_families

OPEN_METRICS = "application/openmetrics-text"
# Made once: it reads when the machine started, which seems to change when the clock is set.
_PROCESS = ProcessCollector(registry=CollectorRegistry())


def collect(context: AppContext, is_compatible: bool) -> list[Metric]:
    """Return every family, filled.

    Args:
        context: of the application.
        is_compatible: also return the series under vLLM's names.
    """
    engine, info = context.engine, context.engine.info
    reports = engine.stats
    snapshot = context.metrics.snapshot(len(reports))
    families: dict[str, Metric] = {}
    for rank, (stats, timings) in enumerate(zip(reports, snapshot.histograms, strict=True)):
        finished = context.metrics.calls[rank].split(stats.finished)
        stats = msgspec.structs.replace(stats, finished=finished)
        labels = {"model_name": context.settings.model_name, "engine": str(rank)}
        _add(families, engine_families(stats, info, labels))
        _add(families, request_families(timings, labels))
        if is_compatible:
            _add(families, vllm_families(stats, info, timings, labels))
    _add(families, http_families(snapshot, engine.status.phase == "draining", context.version))
    _add(families, _PROCESS.collect())
    return list(families.values())


def _add(families: dict[str, Metric], more: Iterable[Metric]) -> None:
    """Put families in, one of a name: another engine's samples go into the family that is there."""
    for family in more:
        families.setdefault(family.name, family)
        if families[family.name] is not family:
            families[family.name].samples += family.samples


def render(families: Iterable[Metric], is_open: bool) -> tuple[bytes, str]:
    """Write families as OpenMetrics or in the older text format; return that and its content type."""
    registry = _Collected(families)
    if is_open:
        # The client's other ways to write names would turn the colon in vLLM's into an underscore.
        text: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
            registry, openmetrics.ALLOWUTF8
        )
        return text, openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


class _Collected(CollectorRegistry):
    """A registry that holds what was collected before."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Return the families."""
        yield from self._families
