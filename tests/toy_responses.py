"""What tests of `/v1/responses` share: a server, and streams read as their bytes came."""

import contextlib
import json
import re

from toy_chat import strict_loads
from toy_server import FakeEngine, byte_tokenizer, run_server, toy_info

PATH = "/v1/responses"
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|endoftext|>"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}


@contextlib.contextmanager
def serving(script, text=None, template=TEMPLATE, **settings):
    """Serve; the running server also has `http`, a client."""
    text = text or byte_tokenizer()
    engine = FakeEngine(script, info=toy_info(max_model_len=4000, vocab_size=300))
    with run_server(engine, text, template=template, **settings) as server, server.client() as server.http:
        yield server
    assert engine.num_running == 0


def post(server, status=200, **body):
    answer = server.http.post(PATH, json={"input": "hi", **body})
    assert answer.status_code == status, answer.text
    return strict_loads(answer.text)


def events_of(text):
    """Return the events of a stream; checks framing and numbers."""
    blocks = text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    events = []
    for number, block in enumerate(blocks[:-2]):
        name, data = block.split("\n")
        event = strict_loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        events.append(event)
    return events


def stream(server, **body):
    answer = server.http.post(PATH, json={"input": "hi", "stream": True, **body})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events_of(answer.text)


def masked(value):
    """Replace what differs between two equal responses."""
    text = json.dumps(value)
    text = re.sub(r'"(resp|msg|rs|fc)_[0-9a-f]{32}"', r'"\1_ID"', text)
    text = re.sub(r"call_[0-9a-f]{24}", "call_ID", text)
    return json.loads(re.sub(r'"(created_at|completed_at)": \d+', r'"\1": 1', text))


def prompts_of(server):
    """Return the text of every prompt that was submitted."""
    return [
        "".join(chr(i - 1) if i else "<|endoftext|>" for i in s.prompt_token_ids)
        for s in server.engine.submissions
    ]
