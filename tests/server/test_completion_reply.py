"""CompletionReply: a stream adds up to the whole answer, however outputs are cut and choices alternate."""

import random
from itertools import pairwise

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_server import EOS_ID, byte_ids, byte_tokenizer, fake_logprobs, toy_info

from mambad.engine.outputs import RequestOutput, TokenLogprobs
from mambad.server.choice import ChoiceText
from mambad.server.completion_reply import CompletionReply
from mambad.server.completion_run import Usage
from mambad.server.convert import Converter
from mambad.server.reply import ReplyHead
from mambad.server.settings import AppSettings

TEXT = byte_tokenizer([("a", "b"), ("b", "a")])
LIMITS = toy_info(max_model_len=10_000, vocab_size=260)
CONVERTER = Converter(TEXT, AppSettings(served_model_names=("toy",)))
HEAD = ReplyHead("cmpl-1", 1, "toy", "fp_0")
COLUMNS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
tokens = st.lists(
    st.sampled_from([EOS_ID, *byte_ids("ab\n"), *byte_ids("é😀"), *byte_ids(b"\xff"), 257, 258]), max_size=14
)
bodies = st.fixed_dictionaries(
    {"prompt": st.sampled_from(["ab", "é", ["b", "a\n"], [[2, 3, 4]], [byte_ids(b"\xc3"), byte_ids("x")]])},
    optional={
        "n": st.integers(1, 2),
        "echo": st.booleans(),
        "logprobs": st.integers(0, 2),
        "stop": st.lists(st.sampled_from(["a", "ba", "\n", "é", "b\n"]), min_size=1, max_size=3),
        "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "min_tokens": st.integers(0, 3),
        "max_tokens": st.just(20),
        "return_token_ids": st.booleans(),
        "return_tokens_as_token_ids": st.booleans(),
    },
)


def outputs_of(plan, prompt, ids, reason, cuts):
    """Return the engine's outputs of one choice, in parts; prompt and tokens may stand in one of them."""
    count = plan.text_options.num_logprobs
    scored = []
    if count >= 0 and plan.text_options.echo:
        first, *rest = prompt.token_ids
        scored = [TokenLogprobs(first, None), *(fake_logprobs(token_id, count) for token_id in rest)]
    num_scored, end = len(scored), len(scored) + len(ids)
    bounds = sorted({0, end, *(cut % (end + 1) for cut in cuts)})
    for start, stop in pairwise(bounds) if end else [(0, 0)]:
        part = tuple(ids[max(start - num_scored, 0) : max(stop - num_scored, 0)])
        yield RequestOutput(
            "r",
            token_ids=part,
            logprobs=tuple(fake_logprobs(token_id, count) for token_id in part) if count >= 0 else (),
            prompt_logprobs=tuple(scored[start:stop]),
            finish_reason=reason if stop == end else None,
        )


def deltas_of(plan, answers, cuts, seed):
    """Return (index, delta) pairs in an order that may occur, and the usage at the end."""
    left, choices = {}, {}
    for index, (ids, reason) in enumerate(answers):
        prompt = plan.prompts[index // plan.num_choices]
        left[index] = iter(outputs_of(plan, prompt, ids, reason, cuts))
        choices[index] = ChoiceText(TEXT, plan.text_options, prompt)
    deltas, order = [], random.Random(seed)
    while left:
        index = order.choice(sorted(left))
        deltas.append((index, choices[index].feed(next(left[index]))))
        if choices[index].is_finished:
            del left[index]
    num_prompt_tokens = sum(len(prompt.token_ids) for prompt in plan.prompts)
    return deltas, Usage(num_prompt_tokens, sum(choice.num_tokens for choice in choices.values()), 0)


def join(chunks):
    """Put a stream's choices together, as clients do."""
    choices = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        whole = choices.setdefault(choice["index"], {"text": "", "logprobs": None, "finish_reason": None})
        assert whole["finish_reason"] is None, "a choice went on after its end"
        whole["text"] += choice["text"]
        for name in ("finish_reason", "stop_reason"):
            whole[name] = choice.get(name)
        if choice["logprobs"] is not None:
            whole["logprobs"] = whole["logprobs"] or {name: [] for name in COLUMNS}
            for name in COLUMNS:
                whole["logprobs"][name] += choice["logprobs"][name]
        if "token_ids" in choice:
            whole["token_ids"] = whole.get("token_ids", []) + choice["token_ids"]
        if "prompt_token_ids" in choice:
            assert "prompt_token_ids" not in whole
            whole["prompt_token_ids"] = choice["prompt_token_ids"]
    return [choices[index] for index in sorted(choices)]


def play(body, drawn, cuts, seed=0):
    """Return the choices as a stream puts them together, those of the whole answer, and the usage of both."""
    plan = CONVERTER.completion(orjson.dumps({**body, "stream": True, "stream_options": USAGE}), LIMITS)
    answers = [drawn[index % len(drawn)] for index in range(len(plan.prompts) * plan.num_choices)]
    deltas, usage = deltas_of(plan, answers, cuts, seed)
    streamed, whole = (CompletionReply(plan, HEAD, TEXT) for _ in range(2))
    chunks = [chunk for index, delta in deltas for chunk in streamed.chunks(index, delta, usage, False)]
    assert all(chunk["usage"] is None for chunk in chunks)
    for index, delta in deltas:
        whole.add(index, delta)
    answer = whole.body(usage)
    last = streamed.usage_chunk(usage)
    assert last["choices"] == []
    assert [choice.pop("index") for choice in answer["choices"]] == list(range(len(answers)))
    return join(chunks), answer["choices"], (last["usage"], answer["usage"])


USAGE = {"include_usage": True}
endings = st.tuples(tokens, st.booleans()).map(
    lambda drawn: (drawn[0], "stop" if drawn[1] and drawn[0] else "length")
)


@settings(max_examples=300)
@given(
    bodies, st.lists(endings, min_size=1, max_size=4), st.lists(st.integers(0, 40), max_size=8), st.integers()
)
def test_a_stream_adds_up_to_the_whole_answer_however_it_is_cut(body, drawn, cuts, seed):
    streamed, whole, (streamed_usage, usage) = play(body, drawn, cuts, seed)
    assert streamed == whole
    assert streamed_usage == usage
    assert play(body, drawn, []) == (whole, whole, (usage, usage))
    assert play(body, drawn, range(41)) == (whole, whole, (usage, usage))


@given(bodies, st.lists(endings, min_size=1, max_size=2))
def test_offsets_say_where_each_token_begins_in_its_own_choice(body, drawn):
    _, choices, _ = play({**body, "logprobs": 1}, drawn, [])
    for choice in choices:
        offsets = choice["logprobs"]["text_offset"]
        assert offsets == sorted(offsets)
        assert all(0 <= offset <= len(choice["text"]) for offset in offsets)
        assert {len(choice["logprobs"][name]) for name in COLUMNS} == {len(offsets)}
