"""Writes Grafana's dashboard: `python deploy/grafana/dashboard.py > deploy/grafana/mambad.json`.

The panels stand here as a table; the layout, ids and everything that Grafana wants around a query are made
from it. A test fails when the JSON is stale. Asks no server: tests/deploy holds the queries against one.
"""

import json
import sys
from dataclasses import dataclass, field
from typing import Any

HTTP = 'namespace=~"$namespace", job=~"$job", instance=~"$instance"'
ENGINE = f'{HTTP}, model_name=~"$model_name", engine=~"$engine"'
ANSWERS = f'{HTTP}, route=~"/v1/(completions|chat/completions|responses)", method="POST"'
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
BY_ENGINE = "{{instance}} {{engine}}"
PANEL_HEIGHT = 8
GRID_WIDTH = 24


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: its queries, each with a legend, and its unit as Grafana names it."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    width: int = 8
    kind: str = "timeseries"
    description: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def rate(metric: str, by: str, labels: str = ENGINE) -> str:
    """Return the query of a counter's rate, summed up by labels."""
    return f"sum by ({by}) (rate({metric}{{{labels}}}[$__rate_interval]))"


def gauge(metric: str, by: str = "instance, engine") -> str:
    """Return the query of a gauge, summed up by labels."""
    return f"sum by ({by}) ({metric}{{{ENGINE}}})"


def quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    """Return the queries of a histogram's median, 95th and 99th percentile."""
    buckets = f"sum by (le) (rate({metric}_bucket{{{ENGINE}}}[$__rate_interval]))"
    return tuple((f"histogram_quantile({q}, {buckets})", f"p{100 * q:.0f}") for q in (0.5, 0.95, 0.99))


def error_share(codes: str) -> str:
    """Return the query of the share of requests for an answer that got such codes; 0 where nobody asked."""
    total = f"sum(rate(mambad_http_requests_total{{{ANSWERS}}}[$__rate_interval]))"
    errors = f'sum(rate(mambad_http_requests_total{{{ANSWERS}, code=~"{codes}"}}[$__rate_interval]))'
    return f"{errors} / ({total} > 0) or vector(0)"


def failed_share() -> str:
    """Return the query of the share of requests, streams included, that ended in an error; 0 without any."""
    total = f"sum(rate(mambad_requests_finished_total{{{ENGINE}}}[$__rate_interval]))"
    errors = f'sum(rate(mambad_requests_finished_total{{{ENGINE}, reason="error"}}[$__rate_interval]))'
    return f"{errors} / ({total} > 0) or vector(0)"


def latency(title: str, metric: str) -> Panel:
    """Return a panel of a duration's percentiles."""
    return Panel(title, "s", quantiles(metric))


def states(title: str, metric: str, description: str) -> Panel:
    """Return a stacked panel of a gauge by state."""
    return Panel(
        title, "short", ((gauge(metric, "state"), "{{state}}"),), 12, description=description,
        options={"stacking": {"mode": "normal"}, "fillOpacity": 40},
    )  # fmt: skip


def number(title: str, unit: str, query: str, description: str = "") -> Panel:
    """Return a panel of one number."""
    return Panel(title, unit, ((query, ""),), 4, "stat", description)


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    ("Now", (
        number("Requests running", "short", gauge("mambad_requests_running", "job")),
        number("Requests waiting", "short", gauge("mambad_requests_waiting", "job")),
        number("Generated tokens", "short", rate("mambad_generation_tokens_total", "job"), "a second"),
        number("Slots available", "short", gauge("mambad_state_slots_available", "job")),
        number("Slots leaked, a day", "short",
               f"sum(increase(mambad_state_slots_leaked_total{{{ENGINE}}}[1d]))", "0, or a bug"),
        number("Cache used", "percentunit", f"max(mambad_cache_usage_ratio{{{ENGINE}}})"),
    )),
    ("Traffic", (
        Panel("Requests by answer", "reqps",
              ((rate("mambad_http_requests_total", "code", HTTP), "{{code}}"),)),
        Panel("Requests by end", "reqps",
              ((rate("mambad_requests_finished_total", "reason"), "{{reason}}"),)),
        Panel("Requests by route", "reqps",
              ((rate("mambad_http_requests_total", "route", HTTP), "{{route}}"),)),
        Panel("Tokens", "short", (
            (rate("mambad_prompt_tokens_total", "job"), "prompt"),
            (rate("mambad_generation_tokens_total", "job"), "generated"),
        ), description="a second"),
        Panel("Requests running and waiting", "short", (
            (gauge("mambad_requests_running", "job"), "running"),
            (gauge("mambad_requests_waiting", "job"), "waiting"),
            (gauge("mambad_requests_preempted", "job"), "preempted"),
        )),
        Panel("Preemptions and faulty logits", "short", (
            (rate("mambad_preemptions_total", "job"), "preemptions"),
            (rate("mambad_requests_nonfinite_total", "job"), "NaN or infinite logits"),
        ), description="a second"),
    )),
    ("Rejections and errors", (
        Panel("Turned away", "reqps",
              ((rate("mambad_requests_rejected_total", "reason", HTTP), "{{reason}}"),), 12),
        Panel("Share of errors", "percentunit",
              ((error_share("4.."), "4xx"), (error_share("5.."), "5xx"), (failed_share(), "failed")),
              description="of requests for an answer; a stream that fails was a 200"),
        number("Draining", "short", f"sum(mambad_draining{{{HTTP}}})", "servers that are shutting down"),
    )),
    ("Latency", (
        latency("Time to first token", "mambad_time_to_first_token_seconds"),
        latency("Time between tokens", "mambad_inter_token_latency_seconds"),
        latency("Whole request", "mambad_request_duration_seconds"),
        latency("In the queue", "mambad_request_queue_duration_seconds"),
        latency("Prefill", "mambad_request_prefill_duration_seconds"),
        latency("Decode", "mambad_request_decode_duration_seconds"),
    )),
    ("State slots", (
        states("Slots by state", "mambad_state_slots", "The states of the slots add up to the capacity."),
        Panel("Audits, leaks, slots taken back", "short", (
            (rate("mambad_state_audits_total", "job"), "audits"),
            (rate("mambad_state_slots_leaked_total", "job"), "leaked"),
            (rate("mambad_state_slots_reclaimed_total", "job"), "taken back"),
        ), description="a second"),
        number("Memory of the slots", "bytes", f"sum(mambad_state_slot_capacity{{{ENGINE}}}"
               f" * mambad_state_slot_size_bytes{{{ENGINE}}})"),
    )),
    ("Blocks and cache", (
        states("Blocks by state", "mambad_kv_blocks", "Blocks of keys and values; none without attention."),
        Panel("Cache used", "percentunit",
              ((f"max by (instance, engine) (mambad_cache_usage_ratio{{{ENGINE}}})", BY_ENGINE),),
              description="Of slots or blocks, whichever is more; what can be freed at once is not used."),
        number("Block capacity", "short", f"sum(mambad_kv_block_capacity{{{ENGINE}}})"),
    )),
    ("Engine", (
        Panel("Duration of a step, mean", "s", ((
            f"sum by (kind) (rate(mambad_engine_step_duration_seconds_sum{{{ENGINE}}}[$__rate_interval]))"
            f" / (sum by (kind) (rate(mambad_engine_step_duration_seconds_count{{{ENGINE}}}"
            "[$__rate_interval])) > 0)", "{{kind}}"),)),
        Panel("Rows of a batch", "short", quantiles("mambad_batch_rows")),
        Panel("Since the last step", "s", ((
            f"time() - max by (instance, engine) (mambad_engine_last_step_timestamp_seconds{{{ENGINE}}} > 0)",
            BY_ENGINE),)),
        Panel("Tokens of a prompt", "short", quantiles("mambad_request_prompt_tokens")),
        Panel("Tokens of an answer", "short", quantiles("mambad_request_generation_tokens")),
        Panel("Computing threads", "short",
              ((gauge("mambad_threads"), BY_ENGINE),)),
    )),
    ("Process of the front end", (
        Panel("Processor time", "percentunit", ((
            f"rate(process_cpu_seconds_total{{{HTTP}}}[$__rate_interval])", "{{instance}}"),),
            description="of one core; the engine has a process of its own"),
        Panel("Memory", "bytes", ((f"process_resident_memory_bytes{{{HTTP}}}", "{{instance}}"),)),
        Panel("Open files", "short", ((f"process_open_fds{{{HTTP}}}", "{{instance}}"),)),
    )),
)  # fmt: skip


def panel_json(panel: Panel, number_of: int, x: int, y: int) -> dict[str, Any]:
    """Return one panel at a place of the grid."""
    targets = [
        {"refId": chr(ord("A") + i), "expr": query, "legendFormat": legend, "datasource": DATASOURCE}
        for i, (query, legend) in enumerate(panel.queries)
    ]
    height = PANEL_HEIGHT // 2 if panel.kind == "stat" else PANEL_HEIGHT
    custom = {} if panel.kind == "stat" else {"lineWidth": 1, "showPoints": "never", **panel.options}
    return {
        "id": number_of, "type": panel.kind, "title": panel.title, "description": panel.description,
        "datasource": DATASOURCE, "gridPos": {"x": x, "y": y, "w": panel.width, "h": height},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "targets": targets,
    }  # fmt: skip


def panels() -> list[dict[str, Any]]:
    """Return all rows and their panels, from left to right and from top to bottom."""
    result: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        place = {"x": 0, "y": y, "w": GRID_WIDTH, "h": 1}
        result.append(
            {"id": len(result) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": place}
        )
        x, y, height = 0, y + 1, 0
        for panel in row:
            if x + panel.width > GRID_WIDTH:
                x, y, height = 0, y + height, 0
            result.append(panel_json(panel, len(result) + 1, x, y))
            x, height = x + panel.width, max(height, result[-1]["gridPos"]["h"])
        y += height
    return result


def variable(name: str, label: str) -> dict[str, Any]:
    """Return a variable with the values that a label has."""
    query = f"label_values(mambad_requests_running, {name})"
    return {
        "name": name, "label": label, "type": "query", "datasource": DATASOURCE,
        "query": {"query": query, "refId": name}, "refresh": 2, "multi": True, "includeAll": True,
        "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "sort": 1,
    }  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Return the whole dashboard."""
    datasource = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    names = (
        ("namespace", "Namespace"),
        ("job", "Job"),
        ("instance", "Instance"),
        ("model_name", "Model"),
        ("engine", "Engine"),
    )
    return {
        "uid": "mambad", "title": "mambad", "tags": ["mambad", "llm"], "schemaVersion": 39, "version": 1,
        "editable": True, "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
        "templating": {"list": [datasource, *(variable(*name) for name in names)]},
        "annotations": {"list": []}, "panels": panels(),
    }  # fmt: skip


if __name__ == "__main__":
    json.dump(dashboard(), sys.stdout, indent=1)
    print()
