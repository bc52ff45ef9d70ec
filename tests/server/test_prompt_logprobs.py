"""`prompt_logprobs`: a list of its own beside or without `echo`, and what must not change because of it."""

import pytest
from toy_server import byte_ids, run_server

PATH = "/v1/completions"


@pytest.fixture(scope="module")
def server():
    with run_server(max_logprobs=5) as running, running.client() as client:
        running.http = client
        yield running


def choices(server, **body):
    answer = server.http.post(PATH, json={"prompt": "xab", "max_tokens": 2, "seed": 1, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def test_each_prompt_token_has_an_object_by_id_and_the_first_null(server):
    (choice,) = choices(server, prompt_logprobs=2)
    a, b, x = byte_ids("abx")
    assert choice["prompt_logprobs"] == [
        None,
        {
            str(a): {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
            str(b): {"logprob": -1.5, "rank": 2, "decoded_token": "b"},
        },
        {
            str(b): {"logprob": -1.5, "rank": 2, "decoded_token": "b"},
            str(a): {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
        },
    ]
    (choice,) = choices(server, prompt="ax", prompt_logprobs=1)
    assert choice["prompt_logprobs"][1] == {
        str(x): {"logprob": -1.25, "rank": None, "decoded_token": "x"},
        str(a): {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
    }


def test_zero_shows_the_tokens_of_the_prompt_alone(server):
    (choice,) = choices(server, prompt_logprobs=0)
    assert [len(entry or ()) for entry in choice["prompt_logprobs"]] == [0, 1, 1]


@pytest.mark.parametrize(
    "extra", [{}, {"echo": True}, {"echo": True, "max_tokens": 0}, {"n": 2}, {"logprobs": 0}]
)
def test_nothing_else_in_the_answer_changes(server, extra):
    for logprobs in ({}, {"logprobs": 1}):
        body = {"prompt": "xyz", **extra, **({} if "logprobs" in extra else logprobs)}
        plain = choices(server, **body)
        scored = choices(server, **body, prompt_logprobs=3)
        assert all(len(choice.pop("prompt_logprobs")) == 3 for choice in scored)
        assert scored == plain


def test_a_prompt_of_ids_and_several_prompts_are_scored(server):
    found = choices(server, prompt=[byte_ids("abc"), byte_ids("z")], prompt_logprobs=1, n=2)
    assert [len(choice["prompt_logprobs"]) for choice in found] == [3, 3, 1, 1]


@pytest.mark.parametrize(
    "extra",
    [
        {"prompt_logprobs": 6},
        {"prompt_logprobs": -1},
        {"prompt_logprobs": "5"},
        {"prompt_logprobs": 1, "stream": True},
    ],
)
def test_too_many_a_wrong_type_and_a_stream_are_refused(server, extra):
    answer = server.http.post(PATH, json={"prompt": "ab", **extra})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt_logprobs")


def test_without_the_field_there_is_no_such_list(server):
    assert "prompt_logprobs" not in choices(server, echo=True, logprobs=1)[0]
    assert (
        server.http.post(PATH, json={"prompt": "ab", "prompt_logprobs": None, "stream": True}).status_code
        == 200
    )


@pytest.mark.parametrize("extra", [{"prompt_logprobs": 4}, {"echo": True, "logprobs": 4}])
def test_an_answer_of_gigabytes_is_refused_before_it_is_made(server, extra, monkeypatch):
    monkeypatch.setattr("mambad.server.convert.MAX_PROMPT_SCORES", 5 * 2 * 3 * 4)
    name = "prompt_logprobs" if "prompt_logprobs" in extra else "logprobs"
    body = {"prompt": ["abcd"] * 3, "n": 2, "max_tokens": 1, **extra}
    assert server.http.post(PATH, json=body).status_code == 200
    for more in ({name: 5}, {"prompt": ["abcd", "abcd", "abcde"]}):
        num_before = len(server.engine.submissions)
        error = server.http.post(PATH, json={**body, **more}).json()["error"]
        assert (error["param"], error["code"]) == (name, "invalid_value")
        assert "one request may have 120" in error["message"]
        assert len(server.engine.submissions) == num_before
