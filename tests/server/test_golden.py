"""The wire examples of the API's specification, byte for byte.

Two things stand in answers that the examples leave out: `mambad` with what the cache did, and the share of
cached tokens in `usage`. They are taken out before the comparison; the rest is compared as it came.
"""

import re
import time

from toy_server import FakeEngine, byte_ids, byte_tokenizer, run_server, toy_info

from mambad.engine.async_engine import EngineStatus
from mambad.engine.outputs import TokenLogprobs

PATH = "/v1/completions"
MERGES = [("h", "e"), ("he", "l"), ("Ġ", "hel"), ("l", "o"), ("h", "i"), ("Ġ", "c")]


def bare(text):
    """Return an answer with fixed ids and times, without what the examples don't have."""
    text = re.sub(r'"id":"cmpl-[0-9a-f]{32}"', '"id":"cmpl-1"', text)
    text = re.sub(r'"created":\d+', '"created":1790000000', text)
    text = re.sub(r"fp_[0-9a-f]{12}", "fp_…", text)
    return re.sub(r',"mambad":\{"cache":\{"cached_tokens":\d+,"missed_tokens":\{[^}]*\}\}\}', "", text)


def test_i1_a_stream_with_usage():
    text = byte_tokenizer(MERGES)
    ids = text.encode(" hello\n", False)
    assert [text.token(i) for i in ids] == ["Ġhel", "lo", "Ċ"]
    engine = FakeEngine(lambda submission: ids)
    engine.burst = 1
    body = {"prompt": [1, 2, 3, 4], "stream": True, "stop": "\n", "stream_options": {"include_usage": True}}
    with run_server(engine, text, served_model_names=("m",)) as server, server.client() as client:
        answer = client.post(PATH, json=body, headers={"x-request-id": "3f0c"})
    assert answer.status_code == 200
    assert {
        name: answer.headers[name] for name in ("content-type", "cache-control", "x-accel-buffering")
    } == {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
    }
    assert answer.headers["x-request-id"] == "3f0c"
    head = '{"id":"cmpl-1","object":"text_completion","created":1790000000,"model":"m",'
    assert bare(answer.text) == (
        f'data: {head}"choices":[{{"index":0,"text":" hel","logprobs":null,"finish_reason":null}}],'
        '"usage":null}\n\n'
        f'data: {head}"choices":[{{"index":0,"text":"lo","logprobs":null,"finish_reason":null}}],'
        '"usage":null}\n\n'
        f'data: {head}"choices":[{{"index":0,"text":"","logprobs":null,"finish_reason":"stop",'
        '"stop_reason":"\\n"}],"usage":null}\n\n'
        f'data: {head}"system_fingerprint":"fp_…","choices":[],"usage":{{"prompt_tokens":4,'
        '"completion_tokens":3,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":0}}}\n\n'
        "data: [DONE]\n\n"
    )


def test_i1_the_last_text_comes_with_the_finish_reason_when_one_step_gave_both():
    text = byte_tokenizer(MERGES)
    ids = text.encode(" hello\n", False)
    engine = FakeEngine(lambda submission: [ids[0], ids[0], ids[1], ids[2]])
    engine.burst = 2
    body = {"prompt": [1, 2, 3, 4], "stream": True, "stop": "\n"}
    with run_server(engine, text, served_model_names=("m",)) as server, server.client() as client:
        answer = client.post(PATH, json=body)
    assert bare(answer.text).split("\n\n")[1] == (
        'data: {"id":"cmpl-1","object":"text_completion","created":1790000000,"model":"m",'
        '"system_fingerprint":"fp_…","choices":[{"index":0,"text":"lo","logprobs":null,'
        '"finish_reason":"stop","stop_reason":"\\n"}]}'
    )


def test_i3_a_failure_in_the_middle_of_a_stream():
    engine = FakeEngine(step_s=0.01)
    with (
        run_server(engine) as server,
        server.client() as client,
        client.stream("POST", PATH, json={"prompt": "p", "max_tokens": 200, "stream": True}) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        server.call(lambda: engine.end_all("error", "Engine failed; please retry", "engine_error"))
        rest = "\n".join(lines)
    assert rest.endswith(
        'data: {"error":{"message":"Engine failed; please retry","type":"server_error","param":null,'
        '"code":"engine_error"}}\n\ndata: [DONE]\n'
    )


def test_i4_a_whole_answer_with_echo_and_logprobs(monkeypatch):
    numbers = {"b": -1.25, "Ġc": -0.5}
    text = byte_tokenizer(MERGES)
    (generated,) = text.encode(" c", False)

    def entry(token_id, count):
        value = numbers.get(text.token(token_id))
        return TokenLogprobs(token_id, value, ((token_id, value),))

    monkeypatch.setattr("toy_server.fake_logprobs", entry)
    body = {"prompt": byte_ids("ab"), "max_tokens": 1, "echo": True, "logprobs": 1}
    with (
        run_server(FakeEngine(lambda submission: [generated]), text, served_model_names=("m",)) as server,
        server.client() as client,
    ):
        answer = bare(client.post(PATH, json=body).text)
    # Beyond the example: a fingerprint, the stop reason and the share of cached tokens.
    for more in (',"system_fingerprint":"fp_…"', ',"stop_reason":null'):
        assert answer.count(more) == 1
        answer = answer.replace(more, "")
    answer = answer.replace(',"prompt_tokens_details":{"cached_tokens":0}', "")
    assert answer == (
        '{"id":"cmpl-1","object":"text_completion","created":1790000000,"model":"m","choices":[{"index":0,'
        '"text":"ab c","finish_reason":"length",'
        '"logprobs":{"tokens":["a","b"," c"],"token_logprobs":[null,-1.25,-0.5],'
        '"top_logprobs":[null,{"b":-1.25},{" c":-0.5}],"text_offset":[0,1,2]}}],'
        '"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}}'
    )


def error(message, kind, param, code):
    param = "null" if param is None else f'"{param}"'
    return f'{{"error":{{"message":"{message}","type":"{kind}","param":{param},"code":"{code}"}}}}'


def test_i5_a_prompt_that_is_too_long():
    with run_server(FakeEngine(info=toy_info(max_model_len=4096))) as server, server.client() as client:
        answer = client.post(PATH, json={"prompt": [1] * 5000})
    message = (
        "This model's maximum context length is 4096 tokens. However, your prompt contains 5000 input tokens."
        " Please reduce the length of the input prompt."
    )
    assert answer.status_code == 400
    assert answer.text == error(message, "invalid_request_error", "prompt", "context_length_exceeded")


def test_i5_a_wrong_key_and_an_unknown_model():
    with run_server(api_keys=("one",), served_model_names=("m",)) as server, server.client() as client:
        answer = client.post(PATH, json={"prompt": "p"})
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.text == error(
            "Incorrect API key provided.", "authentication_error", None, "invalid_api_key"
        )
        answer = client.post(
            PATH, json={"prompt": "p", "model": "x"}, headers={"authorization": "Bearer one"}
        )
    assert answer.status_code == 404
    assert answer.text == error(
        "The model `x` does not exist. Valid aliases: m.", "invalid_request_error", "model", "model_not_found"
    )


def test_i5_a_full_queue_and_a_model_that_loads():
    engine = FakeEngine()
    engine.max_requests = 0
    with run_server(engine) as server, server.client() as client:
        answer = client.post(PATH, json={"prompt": "p"})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        message = answer.json()["error"]["message"]
        assert answer.text == error(message, "rate_limit_error", None, "queue_full")
        engine.info, engine.status = None, EngineStatus("loading", "weights", time.time(), 0.5)
        for answer in (client.post(PATH, json={"prompt": "p"}), client.get("/v1/models")):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert answer.json()["error"]["type"] == "server_error"
            assert answer.json()["error"]["code"] == "model_loading"


def test_i6_the_paths_of_the_tokenizer():
    text = byte_tokenizer(MERGES)
    (token_id,) = text.encode("hi", False)
    engine = FakeEngine(info=toy_info(max_model_len=4096, vocab_size=300))
    with run_server(engine, text, served_model_names=("m",)) as server, server.client() as client:
        body = {"model": "m", "prompt": "hi", "add_special_tokens": True, "return_token_strs": False}
        answer = client.post("/tokenize", json=body)
        assert answer.text == f'{{"count":1,"max_model_len":4096,"tokens":[{token_id}],"token_strs":null}}'
        answer = client.post("/detokenize", json={"tokens": [token_id]})
        assert answer.text == '{"prompt":"hi"}'
        info = client.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|endoftext|>"
    assert {"tokenizer_class", "bos_token", "pad_token", "chat_template"} <= set(info)
