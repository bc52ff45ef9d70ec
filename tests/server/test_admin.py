"""`POST /abort_requests`, and the ids that it takes."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from toy_server import FakeEngine, run_server, wait_until

from mambad.server.routes.admin import is_one_of

PATH = "/v1/completions"
BODY = {"prompt": "p", "max_tokens": 200, "ignore_eos": True}


def abort(client, **body):
    return client.post("/abort_requests", json=body)


@pytest.mark.parametrize("name", ["mine", "cmpl-mine"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_request_ends_with_the_error_cancelled(name, is_stream):
    engine = FakeEngine(step_s=0.02)
    with run_server(engine) as server, server.client() as client, ThreadPoolExecutor(2) as pool:
        other = pool.submit(client.post, PATH, json={**BODY, "max_tokens": 20})
        body = {**BODY, "n": 2, "request_id": "mine", "stream": is_stream}
        mine = pool.submit(client.post, PATH, json=body)
        wait_until(lambda: engine.num_running == 3)
        assert abort(client, request_ids=[name, "nobody"]).json() == {"num_aborted": 2}
        answer = mine.result()
        if is_stream:
            assert answer.status_code == 200
            assert '"code":"cancelled"' in answer.text
            assert answer.text.endswith("data: [DONE]\n\n")
        else:
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "cancelled")
            assert answer.headers["x-should-retry"] == "false"
        assert other.result().status_code == 200
        assert list(engine.aborted.values()) == ["cancelled"] * 2


def test_all_requests_can_be_ended_and_none_is_no_error():
    engine = FakeEngine(step_s=0.02)
    with run_server(engine) as server, server.client() as client, ThreadPoolExecutor(2) as pool:
        assert abort(client, abort_all=True).json() == {"num_aborted": 0}
        assert abort(client, request_ids=[]).json() == {"num_aborted": 0}
        futures = [pool.submit(client.post, PATH, json=BODY) for _ in range(2)]
        wait_until(lambda: engine.num_running == 2)
        assert abort(client, request_ids=[]).json() == {"num_aborted": 0}
        assert abort(client, abort_all=True).json() == {"num_aborted": 2}
        assert {future.result().status_code for future in futures} == {500}


@pytest.mark.parametrize(
    "body", [{}, {"request_ids": "x"}, {"request_ids": [5]}, {"request_ids": ["x" * 257]}]
)
def test_what_is_no_list_of_ids_is_refused(body):
    with run_server() as server, server.client() as client:
        answer = abort(client, **body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("request_ids")


def test_it_is_for_administrators():
    with run_server(is_loopback=False) as server, server.client() as client:
        assert abort(client, abort_all=True).status_code == 403
    with run_server(api_keys=("user",), admin_api_keys=("admin",)) as server, server.client() as client:
        for key, status in (("user", 401), ("admin", 200)):
            client.headers["authorization"] = f"Bearer {key}"
            assert abort(client, abort_all=True).status_code == status


def test_ids_match_whole_answers_only():
    assert is_one_of("cmpl-a-0", frozenset(("a",)))
    assert is_one_of("cmpl-a/123abc-7", frozenset(("cmpl-a",)))
    assert is_one_of("cmpl-a-b/123-7", frozenset(("a-b",)))
    assert not is_one_of("cmpl-a-b/123-7", frozenset(("a",)))
    assert not is_one_of("cmpl-ab-0", frozenset(("a",)))


def test_two_requests_may_give_the_same_id():
    engine = FakeEngine(step_s=0.002)
    with run_server(engine) as server, server.client() as client, ThreadPoolExecutor(2) as pool:
        body = {"prompt": "p", "max_tokens": 8, "request_id": "same", "seed": 1}
        answers = [each.result() for each in [pool.submit(client.post, PATH, json=body) for _ in range(2)]]
    assert [answer.json()["id"] for answer in answers] == ["cmpl-same"] * 2
    assert answers[0].json()["choices"] == answers[1].json()["choices"]
    assert len({submission.request_id for submission in engine.submissions}) == 2
