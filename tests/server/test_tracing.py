"""One span a request for text, as a collector receives it; and how little a bad collector matters."""

import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial

import httpx
import pytest
from toy_collector import attributes, run_collector
from toy_server import FakeEngine, run_server, says, wait_until

from mambad.engine.errors import ConfigError
from mambad.server import tracing_otel
from mambad.server.access_log import AccessLog
from mambad.server.tracing import make_tracer, traces_url

PATH = "/v1/completions"
CHAT = "/v1/chat/completions"
TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SERVER_KIND, ERROR = 2, 2
SECRET = "a prompt that nobody else may read"


class Traced:
    """A server whose spans are collected."""

    def __init__(self, app, tracer, collector):
        self.server = None
        self.log = AccessLog(app, (), tracer)
        self.tracer = tracer
        self.collector = collector
        self.num_open = 0

    async def __call__(self, scope, receive, send):
        self.num_open += 1
        try:
            await self.log(scope, receive, send)
        finally:
            self.num_open -= 1

    def client(self):
        return self.server.client()

    def spans(self):
        """Everything so far; ends the traces."""
        wait_until(lambda: self.num_open == 0 and not self.log._unfinished)
        self.tracer.shut_down()
        return self.collector.spans()

    def span(self):
        (span,) = self.spans()
        return span


@contextmanager
def traced(engine=None, **settings):
    with run_collector() as collector:
        tracer = make_tracer(collector.url)
        made = []

        def wrap(app):
            made.append(Traced(app, tracer, collector))
            return made[0]

        with run_server(engine, wrap=wrap, template=TEMPLATE, **settings) as server:
            made[0].server = server
            yield made[0]
        tracer.shut_down()


def lines_of(response):
    return [line for line in response.iter_lines() if line.startswith("data: ")]


def test_a_stream_leaves_one_span_with_the_names_of_the_conventions():
    body = {"prompt": SECRET, "max_tokens": 5, "stream": True, "seed": 7, "temperature": 0.5, "top_k": 3}
    with traced() as on, on.client() as client:
        with client.stream("POST", PATH, json=body | {"stop": [SECRET]}) as response:
            chunks = lines_of(response)
        span = on.span()
        found = attributes(span)
        request_id = response.headers["x-request-id"]
    assert (span.name, span.kind, span.status.code) == ("text_completion toy", SERVER_KIND, 0)
    assert found.pop("gen_ai.response.time_to_first_chunk") > 0
    assert found == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "mambad",
        "gen_ai.request.model": "toy",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 3,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.seed": 7,
        "gen_ai.response.id": json.loads(chunks[0].removeprefix("data: "))["id"],
        "gen_ai.response.model": "toy",
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": len(SECRET),
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "http.request.method": "POST",
        "http.route": PATH,
        "http.response.status_code": 200,
        "url.path": PATH,
        "mambad.engine": 0,
        "mambad.request.id": request_id,
    }
    assert [event.name for event in span.events] == ["queue", "prefill", "decode"]
    assert [attributes(event)["mambad.duration"] for event in span.events] == [0.01, 0.02, 0.03]
    now = time.time_ns()
    assert now - 20e9 < span.start_time_unix_nano < span.end_time_unix_nano <= now
    assert on.collector.paths == ["/v1/traces"]
    assert SECRET.encode() not in b"".join(on.collector.bodies)
    assert {"service.name": "mambad"}.items() <= on.collector.resource().items()


def test_several_choices_have_a_reason_and_times_each():
    with traced(FakeEngine(says("abc"))) as on, on.client() as client:
        assert client.post(PATH, json={"prompt": "x", "n": 3, "max_tokens": 9}).status_code == 200
        span = on.span()
    found = attributes(span)
    assert found["gen_ai.request.choice.count"] == 3
    assert found["gen_ai.response.finish_reasons"] == ["stop"] * 3
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (1, 12)
    assert "gen_ai.response.time_to_first_chunk" not in found, "it was not a stream"
    assert [attributes(event)["mambad.choice.index"] for event in span.events] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_choice_that_ends_at_a_stop_string_has_its_times_too():
    with traced(FakeEngine(says("abcdef", ends=False))) as on, on.client() as client:
        assert client.post(PATH, json={"prompt": "x", "stop": "cd", "max_tokens": 50}).status_code == 200
        span = on.span()
    assert attributes(span)["gen_ai.response.finish_reasons"] == ["stop"]
    assert [event.name for event in span.events] == ["queue", "prefill", "decode"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat(stream):
    body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 4, "stream": stream}
    with traced() as on, on.client() as client:
        assert client.post(CHAT, json=body).status_code == 200
        span = on.span()
    found = attributes(span)
    assert span.name == "chat toy"
    assert (found["gen_ai.operation.name"], found["http.route"]) == ("chat", CHAT)
    assert found["gen_ai.request.stream"] is stream
    assert SECRET.encode() not in b"".join(on.collector.bodies)


def test_what_the_client_did_wrong_has_a_type_but_is_no_fault():
    with traced() as on, on.client() as client:
        assert client.post(PATH, json={"prompt": "x", "model": SECRET}).status_code == 404
        assert client.post(PATH, json={"prompt": "x", "temperature": -1}).status_code == 400
        unknown, invalid = on.spans()
    for span, code, status in ((unknown, "model_not_found", 404), (invalid, "invalid_value", 400)):
        found = attributes(span)
        assert (span.name, span.status.code) == ("text_completion", 0)
        assert (found["error.type"], found["http.response.status_code"]) == (code, status)
    assert SECRET.encode() not in b"".join(on.collector.bodies)


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_of_the_engine_is_an_error_wherever_it_happens(stream):
    engine = FakeEngine(step_s=0.02)
    with traced(engine) as on, on.client() as client:
        fail = partial(engine.end_all, "error", "no", "nonfinite_logits")
        on.server.call(lambda: on.server.loop.call_later(0.15, fail))
        answer = client.post(PATH, json={"prompt": "x", "max_tokens": 200, "stream": stream})
        assert answer.status_code == (200 if stream else 500)
        assert '"nonfinite_logits"' in answer.text
        span = on.span()
    found = attributes(span)
    assert (span.status.code, span.status.message) == (ERROR, "nonfinite_logits")
    assert found["error.type"] == "nonfinite_logits"
    assert found["http.response.status_code"] == (200 if stream else 500)
    assert found["gen_ai.response.finish_reasons"] == ["error"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves(stream):
    engine = FakeEngine(step_s=0.02)
    with traced(engine) as on:
        body = {"prompt": "x", "max_tokens": 200, "stream": stream}
        if stream:
            with httpx.stream("POST", on.server.url + PATH, json=body, timeout=10) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(on.server.url + PATH, json=body, timeout=0.1)
        wait_until(lambda: set(engine.aborted.values()) == {"disconnect"})
        span = on.span()
    found = attributes(span)
    assert span.status.code == 0
    assert (found["error.type"], found["gen_ai.response.finish_reasons"]) == ("disconnect", ["disconnect"])


def test_a_response_that_is_made_in_the_background_is_followed_to_its_end():
    with traced(FakeEngine(step_s=0.02)) as on, on.client() as client:
        body = {"input": "x", "max_output_tokens": 8, "background": True}
        assert client.post("/v1/responses", json=body).json()["status"] in ("queued", "in_progress")
        span = on.span()
    assert attributes(span)["gen_ai.usage.output_tokens"] == 8
    assert span.end_time_unix_nano - span.start_time_unix_nano > 0.1e9


def test_a_response_that_its_client_cancels_is_no_fault():
    with traced(FakeEngine(step_s=0.05)) as on, on.client() as client:
        body = {"input": "x", "max_output_tokens": 90, "background": True}
        name = client.post("/v1/responses", json=body).json()["id"]
        assert client.post(f"/v1/responses/{name}/cancel").json()["status"] == "cancelled"
        span = on.span()
    assert attributes(span)["error.type"] == "cancelled"
    assert span.status.code == 0


@pytest.mark.parametrize("header", ["", f"00-{TRACE_ID}-{PARENT_ID}-01"])
def test_an_sdk_that_is_switched_off_makes_no_span_and_up_no_trace(header, monkeypatch, caplog):
    caplog.set_level("INFO", "mambad")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with traced() as on, on.client() as client:
        client.post(PATH, json={"prompt": "x"}, headers={"traceparent": header})
        assert on.spans() == []
    (line,) = [line for line in caplog.records if hasattr(line, "finish_reason")]
    assert getattr(line, "trace_id", None) == (TRACE_ID if header else None)


def test_the_callers_trace_goes_on():
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "tracestate": "vendor=1"}
    with traced() as on, on.client() as client:
        client.post(PATH, json={"prompt": "x"}, headers=headers)
        span = on.span()
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    assert span.trace_state == "vendor=1"


def test_the_callers_choice_not_to_sample_counts(caplog):
    caplog.set_level("INFO", "mambad")
    with traced() as on, on.client() as client:
        client.post(PATH, json={"prompt": "x"}, headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"})
        wait_until(lambda: any(hasattr(line, "finish_reason") for line in caplog.records))
        assert on.spans() == []
    (line,) = [line for line in caplog.records if hasattr(line, "finish_reason")]
    assert line.trace_id == TRACE_ID, "the log still tells which trace it was"


@pytest.mark.parametrize(
    "given", ["", "junk", f"00-{'0' * 32}-{PARENT_ID}-01", f"ff-{TRACE_ID}-{PARENT_ID}-01"]
)
def test_what_names_no_trace_begins_one(given):
    with traced() as on, on.client() as client:
        client.post(PATH, json={"prompt": "x"}, headers={"traceparent": given})
        span = on.span()
    assert span.trace_id.hex() not in ("0" * 32, TRACE_ID)
    assert span.parent_span_id == b""


def test_other_paths_leave_no_span():
    with traced() as on, on.client() as client:
        client.get("/v1/models")
        client.get(PATH)
        client.post("/tokenize", json={"prompt": "x"})
        assert on.spans() == []


def test_prompts_are_recorded_where_that_is_asked_for():
    with traced(log_prompts=True) as on, on.client() as client:
        client.post(PATH, json={"prompt": [SECRET, "two"], "max_tokens": 2})
        span = on.span()
    messages = json.loads(attributes(span)["gen_ai.input.messages"])
    assert [message["parts"][0]["content"] for message in messages] == [SECRET, "two"]
    assert messages[0]["role"] == "user"


def test_the_standard_variables_count(monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    with traced() as on, on.client() as client:
        client.post(PATH, json={"prompt": "x"})
        client.post(PATH, json={"prompt": "x"}, headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"})
        assert on.span().trace_id.hex() == TRACE_ID
    assert on.collector.resource()["service.name"] == "mine"


def wait_for_exporters() -> None:
    """Wait for threads that still try: they draw from `random`, which Hypothesis forbids beside its tests."""
    for thread in threading.enumerate():
        if thread.name.startswith(("Otel", "mambad-traces")):
            thread.join(20)
            assert not thread.is_alive(), thread.name


@pytest.mark.parametrize("fault", ["down", "hangs", "refuses"])
def test_a_bad_collector_costs_no_request_anything_and_the_end_little(fault, monkeypatch, caplog):
    monkeypatch.setattr(tracing_otel, "SHUTDOWN_TIMEOUT_S", 0.3)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with traced() as on, on.client() as client:
        if fault == "hangs":
            on.collector.hangs.set()
        elif fault == "refuses":
            on.collector.status = 503
        else:
            on.tracer.shut_down()
            on.tracer = make_tracer("http://127.0.0.1:9")
            on.server.call(lambda: setattr(on.log, "_tracer", on.tracer))
        durations = []
        for _ in range(30):
            start = time.monotonic()
            assert client.post(PATH, json={"prompt": "x", "max_tokens": 2}).status_code == 200
            durations.append(time.monotonic() - start)
        start = time.monotonic()
        on.tracer.shut_down()
        assert time.monotonic() - start < 1.5
        assert max(durations) < 1.0
    wait_for_exporters()


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://a:4318", "http://a:4318/v1/traces"),
        ("https://a/", "https://a/v1/traces"),
        ("http://a/x/traces", "http://a/x/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
    ],
)
def test_an_endpoint_without_a_path_gets_the_usual_one(endpoint, url):
    assert traces_url(endpoint) == url


@pytest.mark.parametrize("endpoint", ["localhost:4317", "grpc://a:4317", "http://", "http://a:x", "/traces"])
def test_an_endpoint_that_is_none_is_said_to_be_so(endpoint):
    with pytest.raises(ConfigError, match="it must be the http:// or https:// URL"):
        make_tracer(endpoint)


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )


def test_without_the_extra_the_remedy_is_named_and_nothing_starts():
    code = (
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        "from mambad.server.cli import main\n"
        "sys.exit(main(['serve', '--port', '0', '--otlp-traces-endpoint', 'http://u:p@127.0.0.1:4318']))"
    )
    done = run(code)
    assert done.returncode == 2
    assert "pip install 'mambad[otel]'" in done.stderr.splitlines()[-1]
    assert "u:p@" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_without_the_flag_opentelemetry_is_not_imported():
    """FastAPI may import the interface of the same name by itself; what does the work is not."""
    code = (
        "import sys\n"
        "from mambad.server import cli_serve\n"
        "assert cli_serve.make_tracer(None) is None\n"
        "heavy = {'opentelemetry.sdk', 'opentelemetry.exporter', 'opentelemetry.proto', 'requests'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    assert run(code).returncode == 0
