"""Where defaults of sampling come from, and what requests get of them."""

import json

import orjson
import pytest
from toy_server import byte_tokenizer, toy_info

from mambad.engine.errors import ConfigError
from mambad.server.convert import Converter
from mambad.server.generation_config import describe, sampling_defaults
from mambad.server.settings import AppSettings, SamplingDefaults

LIMITS = toy_info(max_model_len=100, vocab_size=257)
VALUES = {
    "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.5, "max_new_tokens": 9
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    content = {**VALUES, "do_sample": False, "bos_token_id": 1, "top_a": 3}
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    return tmp_path


def params_of(defaults, **body):
    settings = AppSettings(served_model_names=("m",), sampling_defaults=defaults)
    return (
        Converter(byte_tokenizer(), settings).completion(orjson.dumps({"prompt": "p", **body}), LIMITS).params
    )


def test_the_models_own_file_counts_unless_another_or_none_is_named(folder, tmp_path_factory):
    assert sampling_defaults("auto", None, folder) == SamplingDefaults(**VALUES)
    assert sampling_defaults("vllm", None, folder) == SamplingDefaults()
    other = tmp_path_factory.mktemp("other")
    assert sampling_defaults("auto", None, other) == SamplingDefaults()
    assert sampling_defaults(str(folder), None, other) == SamplingDefaults(**VALUES)
    with pytest.raises(ConfigError, match=r"--generation-config: there is no .*generation_config.json"):
        sampling_defaults(str(other), None, folder)


def test_an_override_wins_over_every_file(folder):
    found = sampling_defaults("auto", '{"temperature": 1, "top_k": -1}', folder)
    assert (found.temperature, found.top_k, found.top_p) == (1.0, 0, 0.9)
    assert sampling_defaults("vllm", '{"min_p": 0.2}', folder) == SamplingDefaults(min_p=0.2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no valid JSON"),
        ("[]", "expected a JSON object"),
        ('{"temperature": 3}', "temperature is 3, expected a number from 0 to 2"),
        ('{"temperature": "1"}', "temperature is '1', expected a number"),
        ('{"top_k": 1.5}', "top_k is 1.5, expected"),
        ('{"top_p": true}', "top_p is True, expected"),
        ('{"max_new_tokens": 0}', "max_new_tokens is 0"),
    ],
)
def test_a_value_that_can_not_be_is_named_with_its_place(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        sampling_defaults("vllm", text, tmp_path)
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ConfigError, match=rf"generation_config\.json: .*{message}|{message}"):
        sampling_defaults("auto", None, tmp_path)


def test_requests_get_them_and_may_say_otherwise():
    defaults = SamplingDefaults(**VALUES)
    params = params_of(defaults)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 7, 0.1)
    assert params.repetition_penalty == 1.5
    own = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    params = params_of(defaults, **own)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0, 1, 0, 0)
    assert params.repetition_penalty == 1


def test_the_limit_of_new_tokens_holds_for_every_request():
    defaults = SamplingDefaults(max_new_tokens=9)
    assert params_of(defaults).max_tokens == 9
    assert params_of(defaults, max_tokens=5).max_tokens == 5
    params = params_of(defaults, max_tokens=50, min_tokens=20)
    assert (params.max_tokens, params.min_tokens) == (9, 9)


def test_only_what_is_unusual_is_described():
    assert describe(SamplingDefaults()) == ""
    assert describe(SamplingDefaults(temperature=0.5, top_k=3)) == "temperature=0.5 top_k=3"
