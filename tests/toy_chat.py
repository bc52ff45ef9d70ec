"""What tests of chats share: a template that speaks every dialect, and streams put together as clients do."""

import itertools
import json
import re

from toy_server import FakeEngine, run_server, says, toy_info

PATH = "/v1/chat/completions"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}{{ c.function | tojson }}"
    "{% endfor %}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<bot>{% if enable_thinking %}<think>{% endif %}{% endif %}"
    "{# <tool_call> </think> #}"
)
PLAIN_TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<bot>{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "f"}}
OTHER_TOOL = {"type": "function", "function": {"name": "g", "description": "other"}}
USER = {"role": "user", "content": "hi"}


def join(chunks):
    """Put a stream together the way clients do; every index must begin once and finish once."""
    choices = {}
    for choice in itertools.chain.from_iterable(chunk["choices"] for chunk in chunks):
        assert {"index", "delta", "logprobs", "finish_reason"} <= choice.keys()
        index, delta = choice["index"], choice["delta"]
        if index not in choices:
            assert delta == {"role": "assistant", "content": ""}
            choices[index] = {
                "message": {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []},
                "logprobs": None, "finish_reason": None, "stop_reason": None, "token_ids": [],
            }  # fmt: skip
        else:
            assert "role" not in delta
        whole = choices[index]
        assert whole["finish_reason"] is None, "a choice went on after its end"
        assert bool(delta) == (choice["finish_reason"] is None)
        _add(whole["message"], delta)
        whole["finish_reason"] = choice["finish_reason"]
        whole["stop_reason"] = choice.get("stop_reason")
        whole["token_ids"] += choice.get("token_ids", [])
        if choice["logprobs"] is not None:
            whole["logprobs"] = (whole["logprobs"] or []) + choice["logprobs"]["content"]
    assert all(whole["finish_reason"] for whole in choices.values())
    return [choices[index] for index in sorted(choices)]


def _add(message, delta):
    message["content"] += delta.get("content", "")
    message["reasoning_content"] += delta.get("reasoning_content", "")
    for call in delta.get("tool_calls", ()):
        calls = message["tool_calls"]
        if "id" in call:
            assert call["index"] == len(calls)
            assert call["function"]["arguments"] == ""
            calls.append({key: value for key, value in call.items() if key != "index"})
        else:
            assert call.keys() == {"index", "function"}
            assert call["function"].keys() == {"arguments"}
            assert call["index"] == len(calls) - 1, "a call went on after the next one began"
            calls[-1]["function"]["arguments"] += call["function"]["arguments"]


def without_index(body):
    """Return the choices of a whole answer in the form that `join` has."""
    choices = []
    for choice in body["choices"]:
        message = choice["message"]
        assert message["content"] is not None or message.keys() & {"tool_calls", "reasoning_content"}
        choices.append(
            {
                "message": {
                    "role": message["role"],
                    "content": message["content"] or "",
                    "reasoning_content": message.get("reasoning_content", ""),
                    "tool_calls": message.get("tool_calls", []),
                },
                "logprobs": choice["logprobs"] and choice["logprobs"]["content"],
                "finish_reason": choice["finish_reason"],
                "stop_reason": choice["stop_reason"],
                "token_ids": choice.get("token_ids", []),
            }
        )
    return choices


def masked(value):
    """Replace what differs between two equal answers; JSON texts stay texts."""
    text = value if isinstance(value, str) else json.dumps(value)
    text = re.sub(r"chatcmpl-[0-9a-f]{32}", "chatcmpl-ID", text)
    text = re.sub(r"call_[0-9a-f]{24}", "call_ID", text)
    text = re.sub(r'"created":\d+', '"created":1', text)
    text = re.sub(r"fp_[0-9a-f]{12}", "fp_0", text)
    return text if isinstance(value, str) else json.loads(text)


def strict_loads(text):
    def refuse(name):
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


def post(server, **body):
    answer = server.http.post(PATH, json={"messages": [USER], **body})
    assert answer.status_code == 200, answer.text
    return strict_loads(answer.text)


def stream(server, **body):
    """Return the payloads of a stream; checks its framing."""
    answer = server.http.post(PATH, json={"messages": [USER], "stream": True, **body})
    assert answer.status_code == 200, answer.text
    events = answer.text.split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    assert events.pop() == "data: [DONE]"
    return [strict_loads(event.removeprefix("data: ")) for event in events]


def prompt_of(server, **body):
    """Return the text of the prompt that a request becomes."""
    post(server, max_tokens=1, **body)
    return bytes(i - 1 for i in server.engine.submissions[-1].prompt_token_ids).decode()


def refused(server, **body):
    answer = server.http.post(PATH, json={"messages": [USER], **body})
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def saying(text, template=TEMPLATE, **options):
    return run_server(FakeEngine(says(text), info=toy_info(max_model_len=4096)), template=template, **options)
