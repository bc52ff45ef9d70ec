"""The same numbers under the names that endpoint pickers, autoscalers and dashboards read from vLLM.

Kept apart from the native family because these names hold colons, which metric linters refuse.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from mambad.engine.counters import STEP_TOKEN_BOUNDS
from mambad.engine.messages import EngineInfo
from mambad.engine.outputs import EngineStats, Histogram
from mambad.server.metric_families import Labels, counter, counters, gauge, histogram

HISTOGRAMS = {
    "time_to_first_token_s": "time_to_first_token_seconds",
    "inter_token_latency_s": "inter_token_latency_seconds",
    "time_per_output_token_s": "request_time_per_output_token_seconds",
    "duration_s": "e2e_request_latency_seconds",
    "queue_s": "request_queue_time_seconds",
    "prefill_s": "request_prefill_time_seconds",
    "decode_s": "request_decode_time_seconds",
    "prompt_tokens": "request_prompt_tokens",
    "generation_tokens": "request_generation_tokens",
}
FINISHED_AS = {
    "stop": ("stop", "tool_calls"),
    "length": ("length",),
    "abort": ("disconnect", "cancelled", "timeout", "shutdown"),
    "error": ("error",),
}


def vllm_families(
    stats: EngineStats, info: EngineInfo | None, timings: Mapping[str, Histogram], labels: Labels
) -> Iterator[Metric]:
    """Yield one engine's families under vLLM's names."""
    waiting = stats.num_waiting + stats.num_preempted
    yield gauge("vllm:num_requests_running", "mambad_requests_running", labels, stats.num_running)
    yield gauge("vllm:num_requests_waiting", "Waiting and preempted requests.", labels, waiting)
    for name in ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"):
        yield gauge(name, "mambad_cache_usage_ratio", labels, stats.cache_usage_ratio)
    yield counter("vllm:num_preemptions", "mambad_preemptions_total", labels, stats.preemptions)
    yield counter("vllm:prompt_tokens", "mambad_prompt_tokens_total", labels, stats.prompt_tokens)
    yield counter("vllm:generation_tokens", "mambad_generation_tokens_total", labels, stats.generation_tokens)
    yield counter("vllm:corrupted_requests", "mambad_requests_nonfinite_total", labels, stats.nonfinite)
    finished = {
        name: float(sum(stats.finished.get(reason, 0) for reason in reasons))
        for name, reasons in FINISHED_AS.items()
    }
    text = "mambad_requests_finished_total under vLLM's reasons."
    yield counters("vllm:request_success", text, labels, "finished_reason", finished)
    text = "Tokens that one step computed."
    tokens = stats.step_tokens or Histogram.empty(STEP_TOKEN_BOUNDS)
    yield histogram("vllm:iteration_tokens_total", text, labels, tokens)
    for key, name in HISTOGRAMS.items():
        yield histogram(f"vllm:{name}", f"mambad's {key}.", labels, timings[key])
    if info is not None:
        yield _cache_config(info, labels)


def _cache_config(info: EngineInfo, labels: Labels) -> Metric:
    values = {"block_size": str(info.block_size), "num_gpu_blocks": str(info.num_blocks)}
    family = GaugeMetricFamily("vllm:cache_config_info", "Sizes of the cache.", labels=[*labels, *values])
    family.add_metric([*labels.values(), *values.values()], 1)
    return family
