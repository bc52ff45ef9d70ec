"""Short ways to fill metric families. Pure."""

from collections.abc import Mapping

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from mambad.engine.outputs import Histogram

Labels = Mapping[str, str]


def gauge(name: str, text: str, labels: Labels, value: float) -> Metric:
    """Return a gauge of one sample."""
    return gauges(name, text, labels, None, {"": value})


def gauges(name: str, text: str, labels: Labels, key: str | None, values: Mapping[str, float]) -> Metric:
    """Return a gauge of one sample for each value of the label `key`, or of one sample without it."""
    names = [*labels, *([key] if key else [])]
    family = GaugeMetricFamily(name, text, labels=names)
    for label, value in values.items():
        family.add_metric([*labels.values(), *([label] if key else [])], value)
    return family


def counter(name: str, text: str, labels: Labels, value: float) -> Metric:
    """Return a counter of one sample; `_total` is added to the name."""
    return counters(name, text, labels, None, {"": value})


def counters(name: str, text: str, labels: Labels, key: str | None, values: Mapping[str, float]) -> Metric:
    """Return a counter of one sample for each value of the label `key`, or of one sample without it."""
    names = [*labels, *([key] if key else [])]
    family = CounterMetricFamily(name, text, labels=names)
    for label, value in values.items():
        family.add_metric([*labels.values(), *([label] if key else [])], value)
    return family


def histogram(name: str, text: str, labels: Labels, values: Histogram) -> Metric:
    """Return a histogram of one series."""
    return histograms(name, text, labels, None, {"": values})


def histograms(
    name: str, text: str, labels: Labels, key: str | None, values: Mapping[str, Histogram]
) -> Metric:
    """Return a histogram of one series for each value of the label `key`, or of one series without it."""
    family = HistogramMetricFamily(name, text, labels=[*labels, *([key] if key else [])])
    for label, value in values.items():
        label_values = [*labels.values(), *([label] if key else [])]
        family.add_metric(label_values, _cumulative(value), value.sum)
    return family


def _cumulative(values: Histogram) -> list[tuple[str, float]]:
    buckets, total = [], 0
    for bound, count in zip((*values.bounds, float("inf")), values.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
    return buckets
