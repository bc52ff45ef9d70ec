"""`mambad bench`: words, statistics against figures worked out by hand, and runs against small servers."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from toy_server import FakeEngine, run_server

from mambad.server import cli
from mambad.server.bench_client import Exchange
from mambad.server.bench_load import Load, Prompts, arrival_times
from mambad.server.bench_report import percentile, summarise, table

PROMPTS = Prompts(model="m", input_tokens=8, output_tokens=4, max_token_id=50, is_text=False)


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Give every connection this answer, then close it; yields the URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "use `mambad bench serve` or `mambad bench offline`"),
        (["server"], "use `mambad bench serve` or `mambad bench offline`"),
        (["serve", "--concurency", "1"], "unknown flag --concurency; did you mean --concurrency?"),
        (["serve", "--concurrency", "0"], "'0' is no positive number"),
        (["serve", "--concurrency", "1,x"], "'x' is no positive number"),
        (["serve", "--rate", "-1"], "'-1' is no positive rate"),
        (["serve", "--rate", "nan"], "'nan' is no positive rate"),
        (["serve", "--rate", "1", "--concurrency", "1"], "not allowed with argument --rate"),
        (["serve", "--url", "localhost:8000", "--model", "m"], "is no http address; write http://HOST:PORT"),
        (["serve", "--output", "/no/such/folder/x.json"], "--output: there is no folder /no/such/folder"),
        (["offline", "--prot", "1"], "unknown flag --prot"),
        (["offline", "--port", "1"], "unknown flag --port"),
        (["offline", "--batch", "65"], "--batch 65 is above --max-num-seqs 64"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(capsys, words, message):
    assert cli.main(["bench", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_help_names_both_commands(capsys):
    assert cli.main(["bench", "--help"]) == 0
    out = capsys.readouterr().out
    assert "bench serve" in out
    assert "bench offline" in out


def test_percentiles_are_interpolated_between_ranks():
    values = [1.0, 2.0, 4.0, 8.0, 16.0]
    assert [percentile(values, q) for q in (0, 25, 50, 90, 100)] == [1.0, 2.0, 4.0, pytest.approx(12.8), 16.0]
    assert percentile([3.0], 99) == 3.0
    assert percentile([], 50) == 0.0


def test_statistics_are_those_worked_out_by_hand():
    """Two good requests of 3 and 2 tokens, one of which came in chunks of 2, and one failure."""
    first = Exchange(10.0, [10.1, 10.2, 10.4], 10.5, 4, 3)
    second = Exchange(10.0, [10.3, 10.9], 11.0, 4, 4)
    failed = Exchange(10.0, [10.05], 10.06, error="500: boom")
    result = summarise(Load(num_requests=3, concurrency=2), [first, second, failed], 2.0)
    assert (result.num_requests, result.num_errors, result.errors) == (3, 1, {"500: boom": 1})
    assert (result.prompt_tokens, result.output_tokens) == (8, 7)
    assert (result.output_tokens_per_s, result.requests_per_s) == (3.5, 1.0)
    assert result.ttft_ms.p50 == pytest.approx(200)
    assert result.ttft_ms.p90 == pytest.approx(280)
    assert result.itl_ms.p50 == pytest.approx(200)  # of 100, 200 and 600
    assert result.itl_ms.mean == pytest.approx(300)
    assert result.time_per_output_token_ms.p50 == pytest.approx((150 + 200) / 2)
    assert result.e2e_ms.p99 == pytest.approx(500 + 0.99 * 500)


def test_a_server_that_counts_no_tokens_has_its_chunks_counted():
    result = summarise(Load(num_requests=1, rate=1.0), [Exchange(0.0, [0.1, 0.2], 0.3)], 1.0)
    assert result.output_tokens == 2
    assert result.label == "1/s"


def test_poisson_arrivals_have_the_rate_and_are_reproducible():
    times = arrival_times(10.0, 4000, seed=1)
    assert times == arrival_times(10.0, 4000, seed=1) != arrival_times(10.0, 4000, seed=2)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.1, rel=0.05)
    # An exponential distribution's standard deviation is its mean.
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.1)


def test_prompts_are_reproducible_and_differ():
    bodies = PROMPTS.bodies(20, seed=3)
    assert bodies == PROMPTS.bodies(20, seed=3) != PROMPTS.bodies(20, seed=4)
    assert len({tuple(body["prompt"]) for body in bodies}) == 20
    assert all(len(body["prompt"]) == 8 and min(body["prompt"]) >= 3 for body in bodies)
    assert max(max(body["prompt"]) for body in bodies) <= 50


def test_tables_are_aligned():
    assert table(["a", "long"], [["wide", "1"], ["x", "22"]]) == ["a     long", "wide     1", "x       22"]


def test_a_server_is_measured(capsys, tmp_path):
    engine = FakeEngine(step_s=0.001)
    file = tmp_path / "out.json"
    with run_server(engine) as server:
        words = ["--url", server.url, "--concurrency", "1,3", "--num-requests", "6", "--output-tokens", "5"]
        assert cli.main(["bench", "serve", *words, "--output", str(file)]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["load", "requests", "errors", "tok/s"]
    assert [row.split()[:3] for row in rows] == [["1", "6", "0"], ["3", "6", "0"]]
    report = json.loads(file.read_text())
    assert report["model"] == "toy"
    for level in report["levels"]:
        assert (level["prompt_tokens"], level["output_tokens"]) == (6 * 64, 6 * 5)
        assert 0 < level["ttft_ms"]["p50"] <= level["e2e_ms"]["p50"]
        assert level["itl_ms"]["p50"] >= 1.0
    # One to warm up, then two measurements.
    assert [len(item.prompt_token_ids) for item in engine.submissions] == [64] * 13
    assert all(item.params.max_tokens == 5 and item.params.ignore_eos for item in engine.submissions)


def test_arrivals_at_a_rate_and_texts_are_sent(capsys):
    engine = FakeEngine()
    with run_server(engine, api_keys=("k",)) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAMBAD_API_KEY", "k")
        words = ["--rate", "500", "--num-requests", "7", "--text-prompts", "--input-tokens", "9"]
        assert cli.main(["bench", "serve", "--url", server.url, "--warmup", "0", *words]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert row.split()[:3] == ["500/s", "7", "0"]
    assert len(engine.submissions) == 7


def test_no_more_requests_run_at_once_than_asked_for(capsys):
    engine = FakeEngine(step_s=0.001)
    engine.max_requests = 2
    with run_server(engine) as server:
        common = ["bench", "serve", "--url", server.url, "--num-requests", "8", "--output-tokens", "3"]
        assert cli.main([*common, "--concurrency", "2"]) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["2", "8", "0"]
        assert cli.main([*common, "--concurrency", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    num_errors = int(lines[1].split()[2])
    assert num_errors > 0
    assert lines[2].startswith(f"error {num_errors} ×: 429: ")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "the connection was closed in the middle of an answer"),
        (b"HTTP/1.1 500 x\r\n\r\nbroken", "500: broken"),
        (b'HTTP/1.1 404 x\r\nContent-Length: 28\r\n\r\n{"error": {"message": "no m"}}', "404: "),
        (b"HTTP/1.1 200 OK\r\n\r\n", "the stream ended before its [DONE]"),
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"error": {"message": "died"}}\n\n', "died"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: 1\n\ndata: [DONE]\n\n", "argument of type 'int' is not iterable"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: {\n\n", "unexpected end of data"),
    ],
)
def test_what_goes_wrong_is_counted_and_named(capsys, answer, message):
    with answering(answer) as url:
        words = ["--url", url, "--model", "m", "--concurrency", "1", "--num-requests", "2", "--warmup", "0"]
        assert cli.main(["bench", "serve", *words]) == 1
    _, row, error = capsys.readouterr().out.splitlines()
    assert row.split()[:3] == ["1", "2", "2"]
    assert error.startswith("error 2 ×: ")
    assert message in error


def test_a_silent_server_runs_into_the_timeout(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        words = ["--url", url, "--model", "m", "--concurrency", "1", "--num-requests", "1", "--warmup", "0"]
        assert cli.main(["bench", "serve", *words, "--timeout", "0.05"]) == 1
    assert "no end within 0.05 s" in capsys.readouterr().out


def test_no_server_is_one_line_and_exit_code_1(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    assert cli.main(["bench", "serve", "--url", url]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "no answer from" in err
