"""The queries that must be answered: those of the rules, of the dashboard, and of dashboards for vLLM.

Reads the files under deploy/; asks nobody.
"""

import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
RULES = ROOT / "deploy/prometheus/mambad-rules.yaml"
RULES_TEST = ROOT / "deploy/prometheus/mambad-rules-test.yaml"
DASHBOARD = ROOT / "deploy/grafana/mambad.json"
VARIABLES = {"$__rate_interval": "1m"} | dict.fromkeys(
    ("$namespace", "$job", "$instance", "$model_name", "$engine"), ".*"
)

# What published dashboards and autoscalers for vLLM ask for (production-stack, KServe, llm-d).
VLLM_QUERIES = (
    "histogram_quantile(0.99, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[1m])))",
    "histogram_quantile(0.5, sum by (le) (rate(vllm:e2e_request_latency_seconds_bucket[1m])))",
    "rate(vllm:e2e_request_latency_seconds_sum[1m]) / rate(vllm:e2e_request_latency_seconds_count[1m])",
    "rate(vllm:request_time_per_output_token_seconds_sum[1m])",
    "histogram_quantile(0.95, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket[1m])))",
    "sum(rate(vllm:prompt_tokens_total[1m]))",
    "sum(rate(vllm:generation_tokens_total[1m]))",
    "sum(rate(vllm:iteration_tokens_total_count[1m]))",
    "sum(rate(vllm:iteration_tokens_total_sum[1m]))",
    "sum(vllm:num_requests_running)",
    "sum(vllm:num_requests_waiting)",
    "avg(vllm:kv_cache_usage_perc)",
    "avg(vllm:gpu_cache_usage_perc)",
    "sum by (finished_reason) (increase(vllm:request_success_total[1m]))",
    "rate(vllm:request_queue_time_seconds_sum[1m])",
    "rate(vllm:request_prefill_time_seconds_sum[1m])",
    "rate(vllm:request_decode_time_seconds_sum[1m])",
    "histogram_quantile(0.9, sum by (le) (rate(vllm:request_prompt_tokens_bucket[1m])))",
    "histogram_quantile(0.9, sum by (le) (rate(vllm:request_generation_tokens_bucket[1m])))",
    "sum(rate(vllm:num_preemptions_total[1m]))",
    "sum(increase(vllm:corrupted_requests_total[1m]))",
)


def rules() -> list[dict[str, Any]]:
    """Return all rules, recording and alerting."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana reads it."""
    parsed: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return parsed


def dashboard_queries() -> list[str]:
    """Return the queries of all panels, their variables replaced by what stands for everything."""
    queries = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    return [_without_variables(query) for query in queries]


def recorded_names() -> list[str]:
    """Return the names of the series that recording rules make."""
    return [rule["record"] for rule in rules() if "record" in rule]


def scraped_names(query: str) -> set[str]:
    """Return the names of scraped series in a query, recorded ones left out."""
    bare = re.sub(r'"[^"]*"', '""', query)
    names = set(re.findall(r"\b(?:mambad|vllm|process)[:_][a-z0-9_:]+", bare))
    return {name for name in names if not name.startswith("mambad:")}


def _without_variables(query: str) -> str:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query
