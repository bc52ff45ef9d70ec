"""/metrics: every series from the start, sums that hold, names that a linter takes."""

import re

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families
from toy_chat import PATH, TOOL, USER, saying
from toy_server import FakeEngine, run_server, says, wait_until

from mambad.engine.outputs import EngineStats, Histogram

NATIVE = [
    "mambad_state_slots",
    "mambad_state_slot_capacity",
    "mambad_state_slots_available",
    "mambad_state_slot_size_bytes",
    "mambad_kv_blocks",
    "mambad_kv_block_capacity",
    "mambad_cache_usage_ratio",
    "mambad_requests_running",
    "mambad_requests_waiting",
    "mambad_requests_preempted",
    "mambad_draining",
    "mambad_threads",
    "mambad_model_load_duration_seconds",
    "mambad_engine_last_step_timestamp_seconds",
    "mambad_state_slot_last_leak_timestamp_seconds",
    "mambad_build_info",
    "mambad_engine_info",
    "mambad_state_slots_leaked_total",
    "mambad_state_slots_reclaimed_total",
    "mambad_state_audits_total",
    "mambad_prompt_tokens_total",
    "mambad_generation_tokens_total",
    "mambad_preemptions_total",
    "mambad_requests_finished_total",
    "mambad_requests_rejected_total",
    "mambad_requests_nonfinite_total",
    "mambad_graph_padding_rows_total",
    "mambad_http_requests_total",
    "mambad_time_to_first_token_seconds_count",
    "mambad_inter_token_latency_seconds_count",
    "mambad_request_duration_seconds_count",
    "mambad_request_queue_duration_seconds_count",
    "mambad_request_prefill_duration_seconds_count",
    "mambad_request_decode_duration_seconds_count",
    "mambad_engine_step_duration_seconds_count",
    "mambad_request_prompt_tokens_count",
    "mambad_request_generation_tokens_count",
    "mambad_batch_rows_count",
]
COMPATIBLE = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:corrupted_requests_total",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds_count",
    "vllm:inter_token_latency_seconds_count",
    "vllm:request_time_per_output_token_seconds_count",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:request_queue_time_seconds_count",
    "vllm:request_prefill_time_seconds_count",
    "vllm:request_decode_time_seconds_count",
    "vllm:request_prompt_tokens_count",
    "vllm:request_generation_tokens_count",
    "vllm:iteration_tokens_total_count",
    "vllm:cache_config_info",
]


def scrape(client, query=""):
    """Return {(name, labels): value} of a scrape."""
    answer = client.get(f"/metrics{query}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples, f"{key} twice"
            samples[key] = sample.value
    return samples


def value(samples, name, **labels):
    """Return the one sample of this name with these labels among others."""
    (found,) = [v for (n, ls), v in samples.items() if n == name and set(labels.items()) <= ls]
    return found


def names_of(samples):
    return {name for name, _ in samples}


def test_every_series_is_there_before_the_first_request():
    with run_server() as server, server.client() as client:
        samples = scrape(client)
        assert set(NATIVE) <= names_of(samples)
        assert set(COMPATIBLE) <= names_of(samples)
        engine = {"model_name": "toy", "engine": "0"}
        for state in ("free", "reserved", "active", "checkpoint", "quarantined", "leaked"):
            value(samples, "mambad_state_slots", state=state, **engine)
        for state in ("free", "active", "cached", "quarantined", "leaked"):
            assert value(samples, "mambad_kv_blocks", state=state, **engine) == 0
        for reason in (
            "stop",
            "length",
            "tool_calls",
            "disconnect",
            "cancelled",
            "timeout",
            "error",
            "shutdown",
        ):
            assert value(samples, "mambad_requests_finished_total", reason=reason, **engine) == 0
        for kind in ("prefill", "decode", "mixed", "dummy"):
            value(samples, "mambad_engine_step_duration_seconds_count", kind=kind, **engine)
        for reason in ("stop", "length", "abort", "error"):
            value(samples, "vllm:request_success_total", finished_reason=reason, **engine)
        for route in ("/v1/completions", "/v1/chat/completions", "/v1/responses"):
            for code in ("200", "400", "429", "500", "503"):
                assert value(samples, "mambad_http_requests_total", route=route, code=code) == 0
        later = scrape(client)
        assert set(samples) <= set(later)


@pytest.mark.parametrize(("settings", "query"), [({}, "?compat=none"), ({"metrics_compat": "none"}, "")])
def test_the_native_family_alone_passes_a_linter(settings, query):
    with run_server(**settings) as server, server.client() as client:
        client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
        text = client.get(f"/metrics{query}").text
        assert set(NATIVE) <= names_of(scrape(client, query))
    assert ":" not in re.sub(r"#.*|\{.*?\}", "", text)
    families = list(text_string_to_metric_families(text))
    for family in families:
        assert family.documentation, family.name
        is_counter = family.type == "counter"
        assert all(sample.name.endswith("_total") == is_counter for sample in family.samples), family.name
        assert not re.search(r"(_count|_sum|_bucket)$", family.name)
        assert not re.search(r"milli|micro|minutes|hours|kilo|mega|percent", family.name)
        if family.type == "histogram":
            assert any(sample.labels.get("le") == "+Inf" for sample in family.samples)
    assert len({family.name for family in families}) == len(families)


def test_slots_add_up_in_every_scrape_under_load():
    engine = FakeEngine(says("ab", ends=False), step_s=0.002)
    with run_server(engine) as server, server.client() as client:
        with client.stream(
            "POST", "/v1/completions", json={"prompt": "a", "n": 12, "max_tokens": 200, "stream": True}
        ):
            for _ in range(10):
                samples = scrape(client)
                slots = [v for (name, _), v in samples.items() if name == "mambad_state_slots"]
                assert sum(slots) == value(samples, "mambad_state_slot_capacity") == 8
                assert value(samples, "mambad_requests_running") == 8
                assert (
                    value(samples, "vllm:num_requests_waiting")
                    == value(samples, "mambad_requests_waiting")
                    == 4
                )
        wait_until(lambda: engine.num_running == 0)
        samples = scrape(client)
        assert value(samples, "mambad_requests_finished_total", reason="disconnect") == 12
        assert value(samples, "vllm:request_success_total", finished_reason="abort") == 12


def test_requests_are_timed_and_counted_once_however_they_end():
    engine = FakeEngine(says("one\ntwo", ends=False), step_s=0.001)
    with run_server(engine) as server, server.client() as client:
        for body in (
            {"max_tokens": 10},
            {"max_tokens": 90, "stop": "\n"},
            {"max_tokens": 90, "stop": "\n", "n": 2},
        ):
            for is_stream in (False, True):
                assert client.post(
                    "/v1/completions", json={"prompt": "pq", "stream": is_stream, **body}
                ).is_success
        for name in ("queue", "prefill", "decode"):
            wait_until(
                lambda name=name: value(scrape(client), f"mambad_request_{name}_duration_seconds_count") == 8
            )
        samples = scrape(client)
        for name in ("time_to_first_token_seconds", "request_duration_seconds", "request_generation_tokens"):
            assert value(samples, f"mambad_{name}_count") == 8
        assert value(samples, "mambad_request_prompt_tokens_sum") == 16
        assert value(samples, "mambad_request_generation_tokens_sum") == 2 * (10 + 4 + 8)
        assert value(samples, "mambad_inter_token_latency_seconds_count") == 2 * (9 + 3 + 6)
        assert value(samples, "mambad_request_generation_tokens_bucket", le="4.0") == 6
        assert value(samples, "vllm:e2e_request_latency_seconds_count") == 8
        assert value(samples, "mambad_http_requests_total", route="/v1/completions", code="200") == 6


CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def test_an_answer_of_calls_is_no_other_stop():
    ask = {"messages": [USER], "tools": [TOOL], "max_tokens": 200}
    function = {"type": "function", **TOOL["function"]}
    with saying(CALL) as server, server.client() as client:
        for is_stream in (False, True):
            assert client.post(PATH, json={**ask, "stream": is_stream}).is_success
            answer = client.post(
                "/v1/responses", json={"input": "hi", "tools": [function], "stream": is_stream}
            )
            assert answer.is_success, answer.text
        assert client.post(PATH, json={**ask, "tool_choice": "none"}).is_success
        assert client.post(PATH, json={**ask, "n": 2, "max_tokens": 5}).is_success
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 200}).is_success
        samples = scrape(client)
        for reason, count in {"stop": 2, "length": 2, "tool_calls": 4}.items():
            assert value(samples, "mambad_requests_finished_total", reason=reason) == count, reason
        assert value(samples, "vllm:request_success_total", finished_reason="stop") == 6


def test_refused_requests_are_counted_by_reason():
    with run_server(max_body_bytes=1000) as server, server.client() as client:
        server.engine.max_requests = 0
        bodies = [{"prompt": "a"}, {"prompt": "a" * 300}, {"model": "x", "prompt": "a"}, {"prompt": 5}]
        for body in [*bodies, {"prompt": "a" * 2000}]:
            client.post("/v1/completions", json=body)
        client.get("/v1/models/x")
        samples = scrape(client)
        reasons = ("queue_full", "context_length_exceeded", "model_not_found", "invalid", "request_too_large")
        for reason in reasons:
            assert value(samples, "mambad_requests_rejected_total", reason=reason) == 1
        for code in (429, 404, 413):
            assert value(samples, "mambad_http_requests_total", route="/v1/completions", code=str(code)) == 1
        assert value(samples, "mambad_http_requests_total", route="/v1/completions", code="400") == 2


def test_what_clients_write_becomes_no_label():
    with run_server() as server, server.client() as client:
        for path in ("/secret-1", "/v1/models/secret-2", "/state?x=secret-3"):
            client.get(path)
        client.request("SECRET4", "/health")
        client.post("/v1/completions", json={"model": "secret-5", "prompt": "secret-6", "user": "secret-7"})
        assert "secret" not in client.get("/metrics").text.lower()


def test_the_engines_report_is_shown_as_it_is():
    class Reporting(FakeEngine):
        report = EngineStats(
            slots={"free": 1, "active": 2, "leaked": 1},
            slot_capacity=4,
            num_running=2,
            num_preempted=3,
            num_waiting=4,
            prompt_tokens=11,
            finished={"stop": 5, "timeout": 6},
            graph_replays={8: 9},
            step_duration_s={"decode": Histogram((0.1, 1.0), (3, 2, 1), 4.5)},
            cache_usage_ratio=0.5,
        )
        stats = (report, EngineStats(slots={"free": 7}))

    with run_server(Reporting()) as server, server.client() as client:
        samples = scrape(client)
    assert value(samples, "mambad_state_slots", state="free", engine="1") == 7
    samples = {key: v for key, v in samples.items() if ("engine", "1") not in key[1]}
    assert value(samples, "mambad_state_slots", state="leaked") == 1
    assert value(samples, "mambad_requests_finished_total", reason="timeout") == 6
    assert value(samples, "mambad_graph_replays_total", rows="8") == 9
    assert value(samples, "vllm:num_requests_waiting") == 7
    assert value(samples, "vllm:kv_cache_usage_perc") == 0.5
    step = "mambad_engine_step_duration_seconds"
    buckets = [value(samples, f"{step}_bucket", kind="decode", le=le) for le in ("0.1", "1.0", "+Inf")]
    assert buckets == [3, 5, 6]
    assert value(samples, f"{step}_count", kind="decode") == 6
    assert value(samples, f"{step}_sum", kind="decode") == 4.5


def test_who_asks_for_openmetrics_gets_the_same_numbers_that_way():
    with run_server() as server, server.client() as client:
        client.post("/v1/completions", json={"prompt": "p", "max_tokens": 3})
        accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"
        answer = client.get("/metrics", headers={"accept": accept})
        plain = scrape(client)
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")
    samples = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in open_families(answer.text)
        for sample in family.samples
    }
    assert {name for name, _ in plain} <= {name for name, _ in samples}
    for key, number in samples.items():
        if key in plain and not key[0].startswith("process_"):
            assert plain[key] == number or "http_requests" in key[0], key
