"""Requests → plans: defaults, what null means, and what each field becomes."""

import msgspec
import orjson
import pytest
from tokenizers.processors import TemplateProcessing
from toy_server import byte_ids, byte_tokenizer, toy_info

from mambad.engine.sampling_params import SamplingParams
from mambad.server.choice import TextOptions
from mambad.server.convert import Converter
from mambad.server.schemas.completions import CompletionRequest
from mambad.server.settings import AppSettings

LIMITS = toy_info(max_model_len=100, vocab_size=257)


def plan_of(settings=None, **body):
    converter = Converter(byte_tokenizer(), settings or AppSettings(served_model_names=("m",)))
    return converter.completion(orjson.dumps({"prompt": "p", **body}), LIMITS)


def without_seed(params):
    return msgspec.structs.replace(params, seed=0)


def test_a_bare_request_gets_the_documented_defaults():
    plan = plan_of()
    assert without_seed(plan.params) == SamplingParams()
    assert plan.text_options == TextOptions()
    assert (plan.model, plan.num_choices, plan.stream, plan.priority) == ("m", 1, False, 0)
    assert plan_of(AppSettings(served_model_names=("m",), default_completion_tokens=9)).params.max_tokens == 9


def test_null_is_the_default_in_every_field():
    bare = plan_of()
    for name in CompletionRequest.model_fields:
        if name != "prompt":
            plan = plan_of(**{name: None})
            assert without_seed(plan.params) == without_seed(bare.params), name
            assert plan.text_options == bare.text_options, name


def test_every_field_arrives_where_it_belongs():
    plan = plan_of(
        max_tokens=50, min_tokens=2, temperature=0, top_k=5, top_p=0.5, min_p=0.25, repetition_penalty=2,
        presence_penalty=1, frequency_penalty=-1, logit_bias={"3": 4, "5": -1.5}, stop_token_ids=[7, 8],
        ignore_eos=True, seed=-1, logprobs=0, echo=True, stop=["x", "yz"], n=2, best_of=2, stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False},
        include_stop_str_in_output=True, skip_special_tokens=False, return_token_ids=True, model="m",
        return_tokens_as_token_ids=True, user="u", response_format={"type": "text"}, priority=0,
    )  # fmt: skip
    assert plan.params == SamplingParams(
        max_tokens=50, min_tokens=2, temperature=0.0, top_k=5, top_p=0.5, min_p=0.25, repetition_penalty=2.0,
        presence_penalty=1.0, frequency_penalty=-1.0, logit_bias=((3, 4.0), (5, -1.5)), stop_token_ids=(7, 8),
        ignore_eos=True, seed=-1, num_logprobs=0, num_prompt_logprobs=0, has_stop_strings=True,
    )  # fmt: skip
    assert plan.text_options == TextOptions(
        stops=("x", "yz"), is_stop_included=True, skip_special_tokens=False, min_tokens=2, echo=True,
        num_logprobs=0,
    )  # fmt: skip
    assert plan.include_usage
    assert plan.continuous_usage
    assert plan.return_token_ids
    assert plan.tokens_as_ids


@pytest.mark.parametrize(("top_k", "expected"), [(-1, 0), (0, 0), (1, 1), (10**9, 257)])
def test_top_k_is_bounded_by_the_vocabulary(top_k, expected):
    assert plan_of(top_k=top_k).params.top_k == expected


def test_submissions_stand_in_the_order_of_their_index_and_fit_the_context():
    plan = plan_of(prompt=["a" * 95, "b"], n=3, max_tokens=10, min_tokens=8, seed=4)
    submissions = list(plan.submissions("id"))
    assert [s.request_id for s in submissions] == [f"id-{i}" for i in range(6)]
    keys = [(s.params.prompt_index, s.params.choice_index) for s in submissions]
    assert keys == [(i, j) for i in range(2) for j in range(3)]
    assert [s.params.max_tokens for s in submissions] == [5] * 3 + [10] * 3
    assert [s.params.min_tokens for s in submissions] == [5] * 3 + [8] * 3
    assert {s.params.seed for s in submissions} == {4}
    assert list(submissions[3].prompt_token_ids) == byte_ids("b")


def test_ids_get_no_tokens_added_and_texts_only_on_request():
    text = byte_tokenizer()
    text._tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    converter = Converter(text, AppSettings(served_model_names=("m",)))

    def prompt_of(**body):
        return converter.completion(orjson.dumps(body), LIMITS).prompts[0]

    assert list(prompt_of(prompt=byte_ids("a")).token_ids) == byte_ids("a")
    with_prefix = prompt_of(prompt="a")
    assert (list(with_prefix.token_ids), with_prefix.num_hidden) == ([0, *byte_ids("a")], 1)
    assert prompt_of(prompt="a", add_special_tokens=False).num_hidden == 0
    cut = prompt_of(prompt="abc", truncate_prompt_tokens=2)
    assert (list(cut.token_ids), cut.num_hidden) == (byte_ids("bc"), 0)
    assert prompt_of(prompt="").num_hidden == 1
