"""`POST /v1/completions` over real HTTP: bytes of streams and bodies, and every combination of echo."""

import itertools
import json
import re

import pytest
from toy_server import EOS_ID, FakeEngine, byte_ids, byte_tokenizer, counts_up, run_server, says, toy_info

PATH = "/v1/completions"


@pytest.fixture(scope="module")
def server():
    with run_server() as running, running.client() as client:
        running.http = client
        yield running


def strict_loads(text):
    def refuse(name):
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


def post(server, **body):
    answer = server.http.post(PATH, json={"prompt": "p", **body})
    assert answer.status_code == 200, answer.text
    return strict_loads(answer.text)


def stream(server, **body):
    """Return the payloads of a stream; checks its framing."""
    answer = server.http.post(PATH, json={"prompt": "p", "stream": True, **body})
    assert answer.status_code == 200, answer.text
    events = answer.text.split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    assert events.pop() == "data: [DONE]"
    return [strict_loads(event.removeprefix("data: ")) for event in events]


def join(chunks):
    """Put a stream together the way clients do; every index must finish exactly once."""
    choices = {}
    for choice in itertools.chain.from_iterable(chunk["choices"] for chunk in chunks):
        whole = choices.setdefault(choice["index"], {"text": "", "logprobs": None, "finish_reason": None})
        assert whole["finish_reason"] is None, "a choice went on after its end"
        whole["text"] += choice["text"]
        whole["finish_reason"] = choice["finish_reason"]
        whole["stop_reason"] = choice.get("stop_reason")
        if choice["logprobs"] is not None:
            old = whole["logprobs"] or {key: [] for key in choice["logprobs"]}
            whole["logprobs"] = {key: old[key] + value for key, value in choice["logprobs"].items()}
    assert all(whole["finish_reason"] for whole in choices.values())
    return [choices[index] for index in sorted(choices)]


def without_index(body):
    return [{key: value for key, value in choice.items() if key != "index"} for choice in body["choices"]]


def masked(text):
    text = re.sub(r"cmpl-[0-9a-f]{32}", "cmpl-ID", text)
    text = re.sub(r'"created":\d+', '"created":1', text)
    return re.sub(r"fp_[0-9a-f]{12}", "fp_0", text)


def test_a_stream_has_these_bytes():
    with run_server(FakeEngine(says(" hi\n"))) as server, server.client() as client:
        body = {
            "prompt": [1, 2, 3, 4],
            "stream": True,
            "stop": "\n",
            "stream_options": {"include_usage": True},
        }
        answer = client.post(PATH, json=body, headers={"x-request-id": "abc"})
    headers = {key: value for key, value in answer.headers.items() if key != "date"}
    assert headers == {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        "x-request-id": "abc",
        "transfer-encoding": "chunked",
    }
    head = '"id":"cmpl-ID","object":"text_completion","created":1,"model":"toy"'

    def chunk(text):
        choice = f'{{"index":0,"text":"{text}","logprobs":null,"finish_reason":null}}'
        return f'data: {{{head},"choices":[{choice}],"usage":null}}\n\n'

    assert masked(answer.text) == (
        f"{chunk(' ')}{chunk('h')}{chunk('i')}"
        f'data: {{{head},"choices":[{{"index":0,"text":"","logprobs":null,'
        '"finish_reason":"stop","stop_reason":"\\n"}],"usage":null}\n\n'
        f'data: {{{head},"system_fingerprint":"fp_0","choices":[],'
        '"usage":{"prompt_tokens":4,"completion_tokens":4,'
        '"total_tokens":8,"prompt_tokens_details":{"cached_tokens":0}},'
        '"mambad":{"cache":{"cached_tokens":0,"missed_tokens":{"disabled":4}}}}\n\n'
        "data: [DONE]\n\n"
    )


def test_a_whole_answer_with_echo_and_logprobs_has_these_bytes():
    with run_server(FakeEngine(says(" c"))) as server, server.client() as client:
        body = {"prompt": byte_ids("zb"), "max_tokens": 1, "echo": True, "logprobs": 1}
        answer = client.post(PATH, json=body)
    assert masked(answer.text) == (
        '{"id":"cmpl-ID","object":"text_completion","created":1,"model":"toy","system_fingerprint":"fp_0",'
        '"choices":[{"index":0,"text":"zb ","finish_reason":"length","logprobs":{"tokens":["z","b"," "],'
        '"token_logprobs":[null,-1.25,-1.25],"top_logprobs":[null,{"a":-0.5,"b":-1.25},{"a":-0.5," ":-1.25}],'
        '"text_offset":[0,1,2]},"stop_reason":null}],"usage":{"prompt_tokens":2,"completion_tokens":1,'
        '"total_tokens":3,"prompt_tokens_details":{"cached_tokens":0}},'
        '"mambad":{"cache":{"cached_tokens":0,"missed_tokens":{"disabled":2}}}}'
    )


@pytest.mark.parametrize("prompt", ["héllo", byte_ids("héllo"), ["a", "bé"], [byte_ids("ab"), byte_ids("c")]])
@pytest.mark.parametrize("max_tokens", [0, 1, 5])
@pytest.mark.parametrize("logprobs", [None, 0, 3])
@pytest.mark.parametrize("n", [1, 3])
def test_echo_streams_what_it_returns_whole(server, prompt, max_tokens, logprobs, n):
    body = {"prompt": prompt, "max_tokens": max_tokens, "logprobs": logprobs, "n": n, "echo": True, "seed": 5}
    whole = post(server, **body)
    chunks = stream(server, **body, stream_options={"include_usage": True})
    assert join(chunks) == without_index(whole)
    assert chunks[-1]["usage"] == whole["usage"]
    prompts = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    texts = [item if isinstance(item, str) else bytes(i - 1 for i in item).decode() for item in prompts]
    assert [choice["index"] for choice in whole["choices"]] == list(range(len(texts) * n))
    for choice, text in zip(whole["choices"], [text for text in texts for _ in range(n)], strict=True):
        assert choice["text"].startswith(text)
        assert len(choice["text"]) == len(text) + max_tokens
        assert choice["finish_reason"] == "length"
        if logprobs is not None:
            columns = choice["logprobs"]
            assert "".join(columns["tokens"]) == choice["text"]
            assert columns["token_logprobs"][0] is None
            assert all(value is not None for value in columns["token_logprobs"][1:])
            starts = itertools.accumulate(map(len, columns["tokens"]), initial=0)
            assert columns["text_offset"] == list(starts)[:-1]
            assert max(map(len, columns["top_logprobs"][1:]), default=0) <= logprobs + 1
    assert whole["usage"]["completion_tokens"] == len(texts) * n * max_tokens
    assert whole["usage"]["prompt_tokens"] == sum(len(text.encode()) for text in texts)


def test_many_choices_of_many_prompts_come_back_in_order_whatever_arrives_first(server):
    prompts = [[i + 1] for i in range(3)]
    body = {"prompt": prompts, "n": 8, "max_tokens": 6, "seed": 1}
    texts = [choice["text"] for choice in post(server, **body)["choices"]]
    assert [choice["text"] for choice in join(stream(server, **body))] == texts
    expected = [
        bytes(i - 1 for i in counts_up(submission)).decode()
        for submission in sorted(
            server.engine.submissions[-24:], key=lambda s: (s.params.prompt_index, s.params.choice_index)
        )
    ]
    assert texts == expected
    assert len(set(texts)) > 10


def test_usage_comes_once_in_a_chunk_of_its_own_or_in_every_chunk(server):
    assert all("usage" not in chunk for chunk in stream(server, max_tokens=3))
    assert all("usage" not in chunk for chunk in stream(server, max_tokens=3, stream_options={}))
    chunks = stream(server, max_tokens=3, n=2, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == post(server, max_tokens=3, n=2)["usage"]
    padded = stream(server, max_tokens=3, seed=1, stream_options={"include_obfuscation": True})
    assert join(padded) == join(stream(server, max_tokens=3, seed=1))
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [c["usage"]["completion_tokens"] for c in stream(server, max_tokens=3, stream_options=options)]
    assert counts == [1, 2, 3, 3]


def test_only_the_last_chunk_tells_of_the_cache_and_the_fingerprint(server):
    for options in (None, {"include_usage": True}):
        chunks = stream(server, max_tokens=3, n=2, stream_options=options)
        assert ["mambad" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert ["system_fingerprint" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    whole = post(server, max_tokens=3)
    assert whole["system_fingerprint"] == chunks[-1]["system_fingerprint"]
    assert whole["mambad"] == {"cache": {"cached_tokens": 0, "missed_tokens": {"disabled": 1}}}


def test_an_end_of_sequence_token_counts_and_is_listed_but_shows_no_text():
    with run_server(FakeEngine(says("ab"))) as server, server.client() as server.http:
        body = post(server, logprobs=1)
        (choice,) = body["choices"]
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ab", "stop", None)
        assert choice["logprobs"]["tokens"] == ["a", "b", "<|endoftext|>"]
        assert body["usage"]["completion_tokens"] == 3
        assert post(server, skip_special_tokens=False)["choices"][0]["text"] == "ab"
        going_on = post(server, ignore_eos=True, min_tokens=3, max_tokens=3, skip_special_tokens=False)
        assert going_on["choices"][0]["text"] == "ab<|endoftext|>"


def test_the_engine_is_told_how_many_tokens_a_stop_string_kept():
    engine = FakeEngine(says("one\ntwo", ends=False))
    with run_server(engine) as server, server.client() as server.http:
        for body in ({"max_tokens": 100}, {"max_tokens": 100, "n": 3}):
            engine.kept.clear()
            for chunks in (stream(server, stop=["\nt", "zz"], **body), None):
                if chunks is None:
                    choices = without_index(post(server, stop=["\nt", "zz"], **body))
                else:
                    choices = join(chunks)
                assert {choice["text"] for choice in choices} == {"one"}
                assert {choice["stop_reason"] for choice in choices} == {"\nt"}
            assert list(engine.kept.values()) == [5] * 2 * body.get("n", 1)
        assert not engine.aborted
        assert engine.submissions[-1].params.has_stop_strings
        shown = post(server, stop="\n", include_stop_str_in_output=True, max_tokens=100)
        assert shown["choices"][0]["text"] == "one\n"


def test_a_stop_token_is_named_by_its_id(server):
    token_id = counts_up_first(server)
    (choice,) = post(server, seed=3, stop_token_ids=[token_id])["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("", "stop", token_id)


def counts_up_first(server):
    (choice,) = post(server, seed=3, max_tokens=1, return_token_ids=True)["choices"]
    return choice["token_ids"][0]


def test_token_ids_come_beside_the_text_or_in_place_of_token_texts(server):
    whole = post(server, seed=1, max_tokens=4, return_token_ids=True, n=2)
    chunks = stream(server, seed=1, max_tokens=4, return_token_ids=True, n=2)
    for index, choice in enumerate(whole["choices"]):
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert [i for c in own for i in c["token_ids"]] == choice["token_ids"] == byte_ids(choice["text"])
        assert own[0]["prompt_token_ids"] == choice["prompt_token_ids"] == byte_ids("p")
        assert all("prompt_token_ids" not in c for c in own[1:])
    named = post(server, seed=1, max_tokens=2, logprobs=1, return_tokens_as_token_ids=True)
    columns = named["choices"][0]["logprobs"]
    assert columns["tokens"] == [f"token_id:{i}" for i in whole["choices"][0]["token_ids"][:2]]
    assert columns["tokens"][0] in columns["top_logprobs"][0]


def test_a_character_split_over_tokens_arrives_whole():
    with run_server(FakeEngine(says("日本😀é"))) as server, server.client() as server.http:
        chunks = stream(server, max_tokens=50)
        assert [chunk["choices"][0]["text"] for chunk in chunks] == ["日", "本", "😀", "é", ""]
        cut = stream(server, max_tokens=5)
        assert "".join(chunk["choices"][0]["text"] for chunk in cut) == "日\ufffd"
        assert post(server, max_tokens=5)["choices"][0]["text"] == "日\ufffd"


def test_a_seed_is_drawn_once_and_shared_by_all_choices(server):
    post(server, n=2)
    first, second = server.engine.submissions[-2:]
    assert first.params.seed == second.params.seed
    post(server)
    assert server.engine.submissions[-1].params.seed != first.params.seed
    post(server, seed=-5)
    assert server.engine.submissions[-1].params.seed == -5


@pytest.mark.parametrize("prompt", ["", [], [""], [[]]])
def test_an_empty_prompt_begins_a_document(server, prompt):
    body = post(server, prompt=prompt, max_tokens=1, echo=True)
    assert list(server.engine.submissions[-1].prompt_token_ids) == [EOS_ID]
    assert len(body["choices"][0]["text"]) == 1, "the token that we put there is not echoed"
    assert body["usage"]["prompt_tokens"] == 1


def test_an_empty_prompt_is_refused_by_a_model_without_a_first_token():
    text = byte_tokenizer()
    text.eos_token = None
    with run_server(text=text) as server, server.client() as client:
        answer = client.post(PATH, json={"prompt": ["a", ""]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


def test_max_tokens_is_cut_to_the_context_and_a_prompt_that_fills_it_is_refused(server):
    body = post(server, prompt="x" * 250, max_tokens=10**9)
    assert body["usage"]["completion_tokens"] == 6
    scored = post(server, prompt="x" * 256, max_tokens=0, echo=True)
    assert scored["usage"] == {
        "prompt_tokens": 256,
        "completion_tokens": 0,
        "total_tokens": 256,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    for prompt in ("x" * 256, byte_ids("x" * 300), "x" * 100_000):
        for is_stream in (False, True):
            answer = server.http.post(PATH, json={"prompt": prompt, "stream": is_stream})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
            assert error["param"] == "prompt"
            text = r"This model's maximum context length is 256 tokens\. .* (at least )?\d+ input tokens"
            assert re.match(text, error["message"])


def test_a_prompt_is_cut_when_that_was_asked_for(server):
    def sent(**body):
        post(server, max_tokens=4, **body)
        return bytes(i - 1 for i in server.engine.submissions[-1].prompt_token_ids).decode()

    text = "".join(chr(ord("a") + i % 26) for i in range(400))
    assert sent(prompt=text, truncate_prompt_tokens=10) == text[-10:]
    assert sent(prompt=byte_ids(text), truncate_prompt_tokens=10, truncation_side="right") == text[:10]
    assert sent(prompt=text, truncate_prompt_tokens=-1) == text[-252:]
    assert sent(prompt="short", truncate_prompt_tokens=10) == "short"


def test_several_tokens_of_a_step_share_a_chunk():
    engine = FakeEngine(says("abcdefgh"))
    engine.burst = 4
    with run_server(engine) as server, server.client() as server.http:
        chunks = stream(server, logprobs=0)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["abcd", "efgh", ""]
    assert join(chunks)[0]["logprobs"]["text_offset"] == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_two_requests_with_the_same_id_do_not_disturb_each_other():
    engine = FakeEngine(step_s=0.01)
    with run_server(engine) as server, server.client() as client:
        body = {"prompt": "p", "max_tokens": 8, "stream": True, "seed": 1}
        headers = {"x-request-id": "same"}
        with (
            client.stream("POST", PATH, json=body, headers=headers) as first,
            client.stream("POST", PATH, json=body, headers=headers) as second,
        ):
            ids = {answer.headers["x-request-id"] for answer in (first, second)}
            texts = [masked(answer.read().decode()) for answer in (first, second)]
    assert ids == {"same"}
    assert texts[0] == texts[1]
    assert len({submission.request_id for submission in engine.submissions}) == 2


def test_priority_is_passed_on_only_under_its_policy():
    with run_server(scheduling_policy="priority") as server, server.client() as server.http:
        post(server, priority=-3)
        assert server.engine.submissions[-1].priority == -3


def test_a_model_may_be_named_by_any_of_its_names(server):
    assert post(server, model="org/toy")["model"] == "org/toy"
    assert post(server, model="")["model"] == "toy"
    assert post(server, model=None)["model"] == "toy"


def test_padding_rows_of_the_vocabulary_are_no_tokens():
    with run_server(FakeEngine(info=toy_info(vocab_size=200))) as server, server.client() as client:
        for body in (
            {"prompt": [200]},
            {"prompt": "a", "logit_bias": {"200": 1}},
            {"prompt": "a", "stop_token_ids": [200]},
        ):
            assert client.post(PATH, json=body).status_code == 400
        assert client.post(PATH, json={"prompt": [199], "logit_bias": {"199": 1}}).status_code == 200
