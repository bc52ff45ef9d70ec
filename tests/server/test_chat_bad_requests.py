"""What `/v1/chat/completions` refuses, and how it says so."""

import pytest
from toy_chat import NAMED, OTHER_TOOL, PATH, TEMPLATE, TOOL, USER, prompt_of, refused
from toy_server import run_server


@pytest.fixture(scope="module")
def server():
    with run_server(template=TEMPLATE) as running, running.client() as client:
        running.http = client
        yield running


def test_a_conversation_that_fills_the_context_is_refused_before_a_stream_begins(server):
    for is_stream in (False, True):
        error = refused(server, messages=[{"role": "user", "content": "x" * 300}], stream=is_stream)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        assert error["message"].startswith("This model's maximum context length is 256 tokens.")


def test_a_base_model_says_what_it_needs():
    with run_server() as server, server.client() as server.http:
        error = refused(server)
    assert (error["param"], error["code"]) == ("messages", "chat_template_missing")
    assert "--chat-template" in error["message"]


def test_what_a_template_says_against_messages_is_a_400():
    source = "{{ raise_exception('roles must alternate') }}"
    with run_server(template=source) as server, server.client() as server.http:
        error = refused(server)
    assert error["code"] == "chat_template_error"
    assert error["message"].endswith(": roles must alternate")


def test_a_request_may_bring_a_template_only_where_it_is_trusted(server):
    own = "{{ messages[0].content }}!"
    assert refused(server, chat_template=own)["param"] == "chat_template"
    with (
        run_server(template=TEMPLATE, trust_request_chat_template=True) as other,
        other.client() as other.http,
    ):
        assert prompt_of(other, chat_template=own) == "hi!"
        assert refused(other, chat_template="{% if %}")["param"] == "chat_template"
        assert "SecurityError" in refused(other, chat_template="{{ ''.__class__.x }}")["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [USER, {"role": "user"}]}, "messages.1.content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "assistant", "audio": {"id": "x"}}]}, "messages.0.audio"),
        ({"messages": [{**USER, "tool_calls": [{"function": {"name": "f"}}]}]}, "messages.0.tool_calls"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"tools": []}, "tools"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools.0.function.name"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [OTHER_TOOL], "tool_choice": NAMED}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"verbosity": "low"}, "verbosity"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"moderation": {"model": "x"}}, "moderation"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"stream_options": {}}, "stream_options"),
        ({"prompt": "x"}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"guided_json": {}}, "guided_json"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"stop": [""]}, "stop"),
        ({"chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs"),
        ({"documents": ["x"]}, "documents.0"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(server, body, param):
    assert refused(server, **body)["param"] == param


def test_an_unknown_model_is_a_404_and_fields_may_be_checked_strictly(server):
    answer = server.http.post(PATH, json={"messages": [USER], "model": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    with run_server(template=TEMPLATE, strict_request_fields=True) as other, other.client() as other.http:
        assert refused(other, nonsense=1)["param"] == "nonsense"
        assert refused(other, messages=[{**USER, "nonsense": 1}])["param"] == "nonsense"
