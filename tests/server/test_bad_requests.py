"""What is wrong with a request is said in one form, names the field, and never costs a 5xx."""

import pytest
from toy_server import run_server

from mambad.server.schemas.common import UNSUPPORTED_FIELDS
from mambad.server.schemas.completions import CompletionRequest

PATH = "/v1/completions"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def server():
    with run_server(max_body_bytes=100_000) as running, running.client() as client:
        running.http = client
        yield running


def error_of(answer, status):
    """Return the error of an answer, which must have the common form and be small."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    assert len(answer.content) < 16_000
    assert "Traceback" not in answer.text
    assert "mambad/" not in answer.text
    body = answer.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    return body["error"]


def refused(server, status=400, **body):
    answer = server.http.post(PATH, json={"prompt": "p", "max_tokens": 2, **body})
    return error_of(answer, status)


BAD_VALUES = [
    *[("prompt", value) for value in (None, 5, 1.5, True, {}, [1, "a"], ["a", 1], [[1], "a"], [None])],
    *[("prompt", value) for value in ([True], [1.0], [-1], [2**62], [2**70], [257], [[1, True]], [[1.5]])],
    *[("prompt", value) for value in ([["a"]], [{}], ["a"] * 1025, [[1]] * 1025)],
    *[("max_tokens", value) for value in (-1, 1.5, "5", True, 2**70, [], 0)],
    *[("temperature", value) for value in (-0.1, 2.1, "1", True, [1], 999999)],
    *[("top_p", value) for value in (0, -1, 1.1, "1")],
    *[("min_p", value) for value in (-0.1, 1.1, "x")],
    *[("top_k", value) for value in (-2, 1.5, "1", True)],
    *[("repetition_penalty", value) for value in (0, -1, 1e-300, 1e9, "1")],
    *[("presence_penalty", value) for value in (-2.1, 2.1, "1")],
    *[("frequency_penalty", value) for value in (-2.1, 2.1, {})],
    *[("n", value) for value in (0, -1, 129, 1.0, "2", True, 2**64)],
    *[("best_of", value) for value in (2, 0, "1")],
    *[("suffix", value) for value in ("x", "", 5)],
    *[("stream", value) for value in ("yes", 1, [])],
    *[("stream_options", value) for value in ({}, {"include_usage": True}, 5, [])],
    *[("logprobs", value) for value in (-1, 21, True, "5", 1.5)],
    *[("echo", value) for value in ("x", 1)],
    *[("stop", value) for value in ("", [""], ["a"] * 5, 5, {"a": 1}, [5], ["x" * 1025], ["a", None])],
    *[("stop_token_ids", value) for value in ([257], [-1], [1.5], ["a"], 5, [True], [1] * 129)],
    *[("logit_bias", value) for value in ({"257": 1}, {"-1": 1}, {"a": 1}, {"1": 101}, {"1": "1"}, [1])],
    *[
        ("logit_bias", value)
        for value in ({"1": True}, {"1": None}, {"": 1}, {"٣": 1}, {"01": 1}, {"1_0": 1})
    ],
    ("logit_bias", {str(i): 1 for i in range(2000)}),
    *[("seed", value) for value in (2**63, -(2**63) - 1, 1.5, "1", True)],
    *[("min_tokens", value) for value in (-1, 3, 1.5, "1")],
    *[("truncate_prompt_tokens", value) for value in (0, -2, 1.5, "1")],
    *[("truncation_side", value) for value in ("up", 5)],
    *[("priority", value) for value in (1, "1", 1.5)],
    *[("response_format", value) for value in ({}, "text", [], {"type": "xml"}, {"type": "json_schema"})],
    *[("structured_outputs", value) for value in ({}, "json", [], {"json": [1]}, {"regex": 5}, {"x": 1})],
    *[("model", value) for value in (5, [], {})],
    *[("user", value) for value in (5, [])],
    *[("ignore_eos", value) for value in (1, "true")],
    *[("skip_special_tokens", value) for value in (0, "true")],
]


@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_a_bad_value_is_refused_by_name(server, name, value):
    error = refused(server, **{name: value})
    assert error["type"] == "invalid_request_error"
    assert error["param"].split(".")[0] == name
    assert name in error["message"]


@pytest.mark.parametrize("name", sorted(UNSUPPORTED_FIELDS))
def test_a_known_field_that_is_not_supported_is_refused_by_name_and_null_is_nothing(server, name):
    error = refused(server, **{name: {"a": 1}})
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    neutral = [None, *UNSUPPORTED_FIELDS[name]]
    for value in neutral:
        answer = server.http.post(PATH, json={"prompt": "p", "max_tokens": 1, name: value})
        assert answer.status_code == 200, answer.text


def test_no_type_of_value_in_any_field_is_a_server_error(server):
    values = [None, True, 0, -1, 2**40, 1.5, "", "x", [], [None], [[]], {}, {"a": {}}, [1], ["a"]]
    names = [*CompletionRequest.model_fields, "anything"]
    statuses = set()
    for name in names:
        for value in values:
            body = {"prompt": "p", "max_tokens": 1, name: value}
            answer = server.http.post(PATH, json=body)
            statuses.add(answer.status_code)
            if answer.status_code != 200:
                error_of(answer, 404 if name == "model" and isinstance(value, str) and value else 400)
    assert statuses == {200, 400, 404}
    for name in names:
        if name not in ("prompt", "best_of"):
            assert server.http.post(PATH, json={"prompt": "p", name: None}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b"5",
        b"\xff\xfe",
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e400}',
        b'{"prompt": "a", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"[" * 90_000,
        b"\x1f\x8b\x08\x00",
    ],
)
@pytest.mark.parametrize("path", [PATH, "/tokenize", "/detokenize"])
def test_a_body_that_is_no_json_object_is_refused(server, path, body):
    error = error_of(server.http.post(path, content=body, headers=JSON), 400)
    assert error["code"] == "invalid_json"


def test_of_a_key_that_occurs_twice_the_last_counts(server):
    raw = b'{"prompt": "a", "max_tokens": 1, "max_tokens": 3, "echo": true}'
    answer = server.http.post(PATH, content=raw, headers=JSON)
    assert len(answer.json()["choices"][0]["text"]) == 4


def test_an_unknown_model_is_404_with_the_names_that_are_served(server):
    error = refused(server, 404, model="gpt-9" + "x" * 5000)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert error["message"].endswith("Valid aliases: toy, org/toy.")
    assert refused(server, 400, model="gpt-9", temperature=5)["param"] == "temperature", "schema comes first"
    assert refused(server, 404, model="gpt-9", prompt=[999])["param"] == "model", "then the model"


def test_a_body_of_ten_thousand_faults_gets_a_small_answer(server):
    error = refused(server, stop_token_ids=["x"] * 10_000)
    assert len(error["message"]) < 3000
    error = refused(server, **{f"{name}": "x" * 100 for name in CompletionRequest.model_fields})
    assert "and " in error["message"]
    assert len(error["message"]) <= 2000


def test_many_prompts_times_many_choices_are_refused(server):
    assert refused(server, prompt=["a"] * 9, n=128)["param"] == "prompt"
    assert (
        len(server.http.post(PATH, json={"prompt": ["a"] * 8, "n": 16, "max_tokens": 1}).json()["choices"])
        == 128
    )


@pytest.mark.parametrize(
    ("status", "method", "path", "headers", "content"),
    [
        (404, "GET", "/nope", {}, b""),
        (404, "POST", "/v1/embeddings", JSON, b"{}"),
        (404, "POST", "/v1/audio/speech", JSON, b"{}"),
        (404, "GET", "/v1/models/other", {}, b""),
        (404, "GET", "/metrics/", {}, b""),
        (404, "GET", "/v1/models/..%2f..", {}, b""),
        (405, "GET", PATH, {}, b""),
        (405, "DELETE", "/health", {}, b""),
        (405, "OPTIONS", PATH, {}, b""),
        (413, "POST", PATH, JSON, b" " * 100_001),
        (415, "POST", PATH, {"content-type": "text/plain"}, b"{}"),
        (415, "POST", PATH, {}, b"{}"),
        (415, "POST", PATH, {"content-type": "application/x-www-form-urlencoded"}, b"a=1"),
        (415, "POST", PATH, {"content-type": "application/json; charset=latin-1"}, b"{}"),
        (415, "POST", PATH, JSON | {"content-encoding": "gzip"}, b"{}"),
        (400, "GET", "/state?slot_state=nope", {}, b""),
        (400, "GET", "/state?limit=x", {}, b""),
        (400, "GET", "/state?entries=maybe", {}, b""),
    ],
)
def test_every_path_answers_in_the_common_form(server, status, method, path, headers, content):
    answer = server.http.request(method, path, headers=headers, content=content)
    error_of(answer, status)


def test_a_405_names_all_methods_of_the_path(server):
    for path, methods in (("/ping", "GET, HEAD, POST"), (PATH, "POST"), ("/v1/models/x", "GET")):
        answer = server.http.delete(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, methods)
    assert server.http.post("/openapi.json").status_code == 405


def test_a_body_that_only_turns_out_too_large_is_refused(server):
    def endless():
        for _ in range(30):
            yield b" " * 10_000

    error = error_of(server.http.post(PATH, content=endless(), headers=JSON), 413)
    assert error["code"] == "request_too_large"
    assert refused(server, temperature=5), "the connection and the server go on"


def test_the_head_of_an_error_has_no_body(server):
    answer = server.http.head("/nope")
    assert (answer.status_code, answer.content) == (404, b"")
    assert answer.headers["x-request-id"]


def test_what_nobody_expected_is_a_bare_500_and_is_logged(server, caplog, monkeypatch):
    def explode(self):
        raise RuntimeError("/secret/path: explanation")

    monkeypatch.setattr("mambad.server.context.AppContext.fingerprint", lambda self, info: explode(self))
    error = refused(server, 500)
    assert (error["type"], error["code"]) == ("server_error", "internal_error")
    assert "secret" not in error["message"]
    assert "RuntimeError" in caplog.text
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


def test_an_unknown_field_is_ignored_with_one_warning_or_refused(server, caplog):
    for _ in range(3):
        body = {"prompt": "p", "max_tokens": 1, "request_color": 1, "x" * 500: 1}
        assert server.http.post(PATH, json=body).status_code == 200
    assert caplog.text.count("request_color") == 1
    assert "x" * 65 not in caplog.text
    with run_server(strict_request_fields=True) as strict, strict.client() as client:
        answer = client.post(PATH, json={"prompt": "p", "request_color": 1})
        assert error_of(answer, 400)["param"] == "request_color"


def test_request_ids_are_sent_back_only_when_fit_for_a_log(server):
    def sent_back(request_id):
        return server.http.get("/health", headers={"x-request-id": request_id}).headers["x-request-id"]

    assert sent_back("Abc-123_./:=@+") == "Abc-123_./:=@+"
    for bad in ("a b", "x" * 129, "é".encode(), 'a"b', ""):
        assert sent_back(bad) != bad
        assert len(sent_back(bad)) == 32
