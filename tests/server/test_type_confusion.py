"""Some of the requests that `tests/conformance/fuzz.py` sends by the thousand, to an engine of straw."""

import itertools

import pytest
from toy_server import run_server
from type_confusion import confused_requests, problem_of

JSON = {"content-type": "application/json"}
FIXED = {"prompt": "fixed", "max_tokens": 8, "seed": 7, "logprobs": 2, "echo": True}
NUM_REQUESTS = 800


@pytest.mark.parametrize("seed", [1])
def test_nothing_confuses_the_server(seed):
    with run_server() as server, server.client() as client:
        before = client.post("/v1/completions", json=FIXED).json()["choices"]
        description = client.get("/openapi.json").json()
        statuses = set()
        for request in itertools.islice(confused_requests(description, seed), NUM_REQUESTS):
            answer = client.post(request.path, content=request.body, headers=JSON)
            problem = problem_of(answer.status_code, answer.headers["content-type"], answer.content)
            assert problem is None, f"{request.path} {request.body[:500]!r}: {problem}"
            statuses.add(answer.status_code)
        assert {200, 400} <= statuses
        assert client.post("/v1/completions", json=FIXED).json()["choices"] == before
        assert server.engine.num_running == 0


def test_an_answer_that_is_wrong_is_found():
    good = b'{"error":{"message":"m","type":"t","param":null,"code":null}}'
    assert problem_of(400, "application/json", good) is None
    assert problem_of(500, "application/json", good)
    assert problem_of(400, "application/json", b'{"detail":"x"}')
    assert problem_of(400, "application/json", good.replace(b'"m"', b'"' + b"m" * 16_000 + b'"'))
    assert problem_of(200, "application/json", b'{"x":NaN}')
    assert problem_of(200, "text/event-stream; charset=utf-8", b"data: {}\n\n")
