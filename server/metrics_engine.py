"""The native series that one report of the engine fills, all at once, so that sums hold in every scrape."""

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from mambad.engine.counters import DURATION_BOUNDS_S, FINISH_REASONS, ROW_BOUNDS
from mambad.engine.messages import EngineInfo
from mambad.engine.outputs import BLOCK_STATES, SLOT_STATES, STEP_KINDS, EngineStats, Histogram
from mambad.server.metric_families import Labels, counter, counters, gauge, gauges, histogram, histograms


def engine_families(stats: EngineStats, info: EngineInfo | None, labels: Labels) -> Iterator[Metric]:
    """Yield the families of one engine."""
    yield from _memory(stats, labels)
    yield from _requests(stats, labels)
    yield from _steps(stats, labels)
    yield from _start_up(info, labels)


def _memory(stats: EngineStats, labels: Labels) -> Iterator[Metric]:
    slots, blocks = _complete(stats.slots, SLOT_STATES), _complete(stats.kv_blocks, BLOCK_STATES)
    text = "Slots of the state pool by state; they add up to the capacity."
    yield gauges("mambad_state_slots", text, labels, "state", slots)
    yield gauge("mambad_state_slot_capacity", "Slots of the state pool.", labels, stats.slot_capacity)
    text = "Slots that are free or can be freed at once."
    yield gauge("mambad_state_slots_available", text, labels, stats.slots_available)
    yield gauge("mambad_state_slot_size_bytes", "Bytes of one slot.", labels, stats.slot_size_bytes)
    text = "Blocks of attention KV by state; they add up to the capacity."
    yield gauges("mambad_kv_blocks", text, labels, "state", blocks)
    yield gauge("mambad_kv_block_capacity", "Blocks of attention KV.", labels, stats.kv_block_capacity)
    text = "The larger of the used shares of slots and blocks, 0 to 1."
    yield gauge("mambad_cache_usage_ratio", text, labels, stats.cache_usage_ratio)
    text = "Slots that lost their owner."
    yield counter("mambad_state_slots_leaked", text, labels, stats.slots_leaked)
    text = "Slots that were taken back after a leak."
    yield counter("mambad_state_slots_reclaimed", text, labels, stats.slots_reclaimed)
    yield counter("mambad_state_audits", "Audits of all slots and blocks.", labels, stats.audits)
    text = "When a slot or block last lost its owner; 0 = never."
    yield gauge("mambad_state_slot_last_leak_timestamp_seconds", text, labels, stats.last_leak_time_s)


def _requests(stats: EngineStats, labels: Labels) -> Iterator[Metric]:
    yield gauge("mambad_requests_running", "Requests that hold a slot.", labels, stats.num_running)
    text = "Requests that wait for their first slot."
    yield gauge("mambad_requests_waiting", text, labels, stats.num_waiting)
    text = "Requests that gave up their slot and wait for another."
    yield gauge("mambad_requests_preempted", text, labels, stats.num_preempted)
    text = "Times that a request gave up its slot to another."
    yield counter("mambad_preemptions", text, labels, stats.preemptions)
    yield counter("mambad_prompt_tokens", "Prompt tokens computed.", labels, stats.prompt_tokens)
    yield counter("mambad_generation_tokens", "Tokens generated.", labels, stats.generation_tokens)
    finished = _complete(stats.finished, FINISH_REASONS)
    yield counters("mambad_requests_finished", "Requests ended, by reason.", labels, "reason", finished)
    text = "Requests that ended because their logits were not finite."
    yield counter("mambad_requests_nonfinite", text, labels, stats.nonfinite)


def _steps(stats: EngineStats, labels: Labels) -> Iterator[Metric]:
    none = Histogram.empty(DURATION_BOUNDS_S)
    durations = {kind: stats.step_duration_s.get(kind, none) for kind in STEP_KINDS}
    text = "Time of one step, by what it computed."
    yield histograms("mambad_engine_step_duration_seconds", text, labels, "kind", durations)
    rows = stats.batch_rows or Histogram.empty(ROW_BOUNDS)
    yield histogram("mambad_batch_rows", "Requests in one step.", labels, rows)
    replays = {str(num_rows): float(count) for num_rows, count in stats.graph_replays.items()}
    text = "Steps that replayed a captured graph, by its rows."
    yield counters("mambad_graph_replays", text, labels, "rows", replays)
    text = "Rows of replayed graphs that belonged to nobody."
    yield counter("mambad_graph_padding_rows", text, labels, stats.graph_padding_rows)
    text = "When the last step ended; 0 = none yet."
    yield gauge("mambad_engine_last_step_timestamp_seconds", text, labels, stats.last_step_time_s)


def _start_up(info: EngineInfo | None, labels: Labels) -> Iterator[Metric]:
    threads = info.num_threads if info else 0
    yield gauge("mambad_threads", "Threads that compute.", labels, threads)
    text = "Time that loading the model took; 0 while it loads."
    yield gauge("mambad_model_load_duration_seconds", text, labels, info.load_duration_s if info else 0.0)
    if info is not None:
        names = ("model", "family", "dtype", "state_dtype", "quantization", "device", "kernels")
        values = [labels["model_name"], *(getattr(info, name) for name in names[1:])]
        family = GaugeMetricFamily("mambad_engine_info", "What is served, and how.", labels=[*labels, *names])
        family.add_metric([*labels.values(), *values], 1)
        yield family


def _complete(values: Mapping[str, int], keys: tuple[str, ...]) -> dict[str, float]:
    """Return a value for every key, so that all series exist from the start."""
    return {key: float(values.get(key, 0)) for key in keys}
