"""ResponseOutput: events add up to the items, and the items do not depend on how the text was cut."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from toy_responses import masked
from toy_server import EOS_ID, byte_tokenizer, fake_logprobs

from mambad.engine.outputs import RequestOutput
from mambad.server.chat_choice import MessageFormat
from mambad.server.choice import ChoiceText, PromptText, TextOptions
from mambad.server.logprobs import response_logprobs
from mambad.server.response_output import ResponseOutput
from mambad.server.tool_parsers.forced import ListParser
from mambad.server.tool_parsers.hermes import HermesParser

TEXT = byte_tokenizer([("<", "t"), ("o", "o"), ("{", '"')])
PARTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {"a": "é"}}', "]",
    '[{"name": "f", "arguments": {}}, ', "text", " ", "\n", "é😀", "<", "}",
]  # fmt: skip
tokens = st.lists(st.sampled_from(PARTS), max_size=10).map(
    lambda parts: [token_id for part in parts for token_id in TEXT.encode(part, False)]
)


def outputs_of(ids, sizes, reason, has_logprobs):
    """Cut tokens into the engine's outputs."""
    ids, start = [*ids, EOS_ID] if reason == "stop" else ids, 0
    for size in [*sizes, len(ids) + 1]:
        part = tuple(ids[start : start + size])
        start += size
        is_last = start >= len(ids)
        logprobs = tuple(fake_logprobs(i, 1) for i in part) if has_logprobs else ()
        yield RequestOutput("r", part, logprobs, (), reason if is_last else None)
        if is_last:
            return


def made(form, outputs, has_logprobs):
    options = TextOptions(num_logprobs=1 if has_logprobs else -1, stops=("xt\n",))
    choice = ChoiceText(TEXT, options, PromptText([5]))
    entries = (lambda aligned: response_logprobs(aligned, TEXT, TEXT.special_ids)) if has_logprobs else None
    output = ResponseOutput(form, entries)
    events = []
    for one in outputs:
        # What is told at once must not change later.
        events += [json.loads(json.dumps(event)) for event in output.feed(choice.feed(one))]
        if choice.is_finished:
            break
    assert output.finish_reason is not None
    return output, events


def joined(events):
    """Put a stream together the way a client does."""
    items, texts, entries = [], {}, {}
    for event in events:
        index, kind = event["output_index"], event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert index == len(items)
            assert event["item"]["status"] == "in_progress"
            items.append(None)
            texts[index], entries[index] = "", []
        else:
            assert (index, items[index]) == (len(items) - 1, None), "an item went on after its end"
        if kind.endswith(".delta"):
            texts[index] += event["delta"]
            entries[index] += event.get("logprobs", [])
        if kind.endswith(("_text.done", "arguments.done")):
            assert event.get("text", event.get("arguments")) == texts[index]
            assert event.get("logprobs", []) == entries[index]
        if kind == "output_item.done":
            items[index] = event["item"]
            part = event["item"].get("content", [{}])[0]
            assert event["item"].get("arguments", part.get("text")) == texts[index]
            assert part.get("logprobs", []) == entries[index]
    assert None not in items
    return items


@settings(max_examples=200)
@given(
    tokens,
    st.lists(st.integers(1, 9), max_size=12),
    st.sampled_from(["stop", "length"]),
    st.sampled_from([None, HermesParser, ListParser]),
    st.booleans(),
)
def test_events_add_up_to_the_items(ids, sizes, reason, make_parser, has_thoughts):
    has_logprobs = make_parser is None
    form = MessageFormat(has_thoughts=has_thoughts, make_tool_parser=make_parser)
    output, events = made(form, outputs_of(ids, sizes, reason, has_logprobs), has_logprobs)
    assert joined(events) == output.items
    assert output.items
    whole, _ = made(form, outputs_of(ids, [], reason, has_logprobs), has_logprobs)
    assert masked(whole.items) == masked(output.items)
    assert (whole.token_ids, whole.finish_reason) == (output.token_ids, output.finish_reason)
    for item in output.items:
        if item["type"] == "message" and has_logprobs and not has_thoughts:
            shown = bytes(byte for entry in item["content"][0]["logprobs"] for byte in entry["bytes"])
            assert shown.startswith(item["content"][0]["text"].encode().rstrip("\ufffd".encode()))
