"""ChatReply: a stream adds up to the whole answer, however the engine's outputs and the text are cut."""

import codecs
import re
from bisect import bisect_left
from itertools import accumulate, pairwise

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_chat import NAMED, OTHER_TOOL, TEMPLATE, TOOL, USER, join, masked, without_index
from toy_server import EOS_ID, byte_ids, byte_tokenizer, fake_logprobs, toy_info

from mambad.engine.outputs import RequestOutput
from mambad.server.chat_convert import ChatConverter
from mambad.server.chat_prompt import ChatPrompter
from mambad.server.chat_reply import ChatReply
from mambad.server.chat_template import ChatTemplate
from mambad.server.chat_template_files import ChatTemplates
from mambad.server.choice import ChoiceText
from mambad.server.completion_run import Usage
from mambad.server.convert import Converter
from mambad.server.reply import ReplyHead
from mambad.server.settings import AppSettings

TEXT = byte_tokenizer([("<", "t"), ("o", "o"), ("{", '"')])
LIMITS = toy_info(max_model_len=10_000, vocab_size=260)
SETTINGS = AppSettings(served_model_names=("toy",))
TEMPLATES = ChatTemplates({"default": ChatTemplate(TEMPLATE)})
CONVERTER = ChatConverter(Converter(TEXT, SETTINGS), ChatPrompter(TEMPLATES, SETTINGS), TEXT, SETTINGS)
HEAD = ReplyHead("chatcmpl-1", 1, "toy", "fp_0")
PARTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {"a": "é"}}', "]",
    '{"name": "g", ', '"arguments": {}}', '[{"name": "f", "arguments": {}}, ', "text", " ", "\n",
    "é😀", "<", "}",
]  # fmt: skip
tokens = st.lists(
    st.one_of(
        st.sampled_from(PARTS).map(lambda part: TEXT.encode(part, False)),
        st.sampled_from([[EOS_ID], byte_ids(b"\xff"), byte_ids(b"\xc3")]),
    ),
    max_size=14,
).map(lambda parts: [token_id for part in parts for token_id in part])
bodies = st.fixed_dictionaries(
    {"messages": st.sampled_from([[USER], [USER, {"role": "assistant", "content": "so"}]])},
    optional={
        "stop": st.lists(st.sampled_from(["x", "call", "\n", "}}", "ink", "é"]), min_size=1, max_size=2),
        "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "logprobs": st.just(True),
        "top_logprobs": st.integers(0, 2),
        "tools": st.sampled_from([[TOOL], [TOOL, OTHER_TOOL]]),
        "tool_choice": st.sampled_from(["none", "auto", "required", NAMED]),
        "parallel_tool_calls": st.booleans(),
        "include_reasoning": st.booleans(),
        "chat_template_kwargs": st.just({"enable_thinking": True}),
        "echo": st.booleans(),
        "return_token_ids": st.booleans(),
        "return_tokens_as_token_ids": st.booleans(),
    },
).map(lambda body: body if "tools" in body else {k: v for k, v in body.items() if k != "tool_choice"}).map(
    lambda body: body if "logprobs" in body else {k: v for k, v in body.items() if k != "top_logprobs"}
)  # fmt: skip


def deltas_of(plan, ids, reason, cuts):
    """Return the deltas of one choice whose tokens come in parts, and how many tokens it kept."""
    count = plan.text_options.num_logprobs
    choice = ChoiceText(TEXT, plan.text_options, plan.prompts[0])
    bounds = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    deltas = []
    for start, end in pairwise(bounds) if ids else [(0, 0)]:
        part = tuple(ids[start:end])
        logprobs = tuple(fake_logprobs(token_id, count) for token_id in part) if count >= 0 else ()
        finish = reason if end == len(ids) else None
        deltas.append(choice.feed(RequestOutput("r", part, logprobs, finish_reason=finish)))
        if choice.is_finished:
            break
    return deltas, choice.num_tokens


def play(body, ids, reason, cuts):
    """Return an answer as a stream puts it together, as a whole, and the usage of both."""
    plan = CONVERTER.chat(orjson.dumps(body), LIMITS)
    deltas, num_tokens = deltas_of(plan.completion, ids, reason, cuts)
    usage = Usage(5, num_tokens, 0)
    whole, streamed = (ChatReply(plan.completion, plan.form, HEAD, TEXT) for _ in range(2))
    for delta in deltas:
        whole.add(0, delta)
    last = len(deltas) - 1
    chunks = [
        chunk
        for place, delta in enumerate(deltas)
        for chunk in streamed.chunks(0, delta, usage, place == last)
    ]
    answer = whole.body(usage)
    assert streamed.usage_chunk(usage)["usage"] == answer["usage"]
    assert [chunk for chunk in chunks if "mambad" in chunk] == chunks[-1:]
    assert chunks[0].get("prompt_token_ids") == answer.get("prompt_token_ids")
    return masked(join(chunks)), masked(without_index(answer)), answer["usage"]


@settings(max_examples=300)
@given(bodies, tokens, st.booleans(), st.lists(st.integers(0, 200), max_size=8))
def test_a_stream_adds_up_to_the_whole_answer_however_it_is_cut(body, ids, is_stop, cuts):
    reason = "stop" if is_stop and ids else "length"
    streamed, whole, usage = play(body, ids, reason, cuts)
    assert streamed == whole
    assert play(body, ids, reason, []) == (whole, whole, usage)
    assert play(body, ids, reason, range(len(ids))) == (whole, whole, usage)


@given(bodies, tokens)
def test_logprobs_list_every_token_and_their_bytes_are_the_text(body, ids):
    body = {name: value for name, value in body.items() if name != "return_tokens_as_token_ids"}
    ids = [token_id for token_id in ids if token_id != EOS_ID]
    _, (choice,), usage = play({**body, "logprobs": True, "return_token_ids": True}, ids, "length", [])
    entries = choice["logprobs"]
    assert len(entries) == len(choice["token_ids"]) == usage["completion_tokens"]
    assert {len(entry["top_logprobs"]) for entry in entries} <= {body.get("top_logprobs", 0)}
    written = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert written == b"".join(TEXT.bytes_of(token_id) for token_id in choice["token_ids"])


@given(tokens)
def test_tokens_of_thoughts_are_those_up_to_the_closing_tag(ids):
    ids = [token_id for token_id in ids if token_id != EOS_ID]
    _, _, usage = play({"messages": [USER]}, ids, "length", [])
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    ends = list(accumulate(map(len, texts := [decoder.decode(TEXT.bytes_of(token_id)) for token_id in ids])))
    text = "".join(texts) + decoder.decode(b"", final=True)
    expected = len(ids)
    if re.match(r"\s*<think>", text) is None:
        expected = 0
    elif "</think>" in text:
        expected = 1 + bisect_left(ends, text.index("</think>") + len("</think>"))
    assert usage["completion_tokens_details"]["reasoning_tokens"] == expected
