"""ChoiceText: however the engine's outputs are cut, the choice comes out the same."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from toy_server import EOS_ID, byte_ids, byte_tokenizer, fake_logprobs

from mambad.engine.outputs import RequestOutput, TokenLogprobs
from mambad.server.choice import ChoiceText, PromptText, TextOptions
from mambad.server.logprobs import completion_logprobs

TEXT = byte_tokenizer([("a", "b"), ("b", "a")])
ALPHABET = [EOS_ID, *byte_ids("ab\n"), *byte_ids("é"), *byte_ids(b"\xff"), 257, 258]
tokens = st.lists(st.sampled_from(ALPHABET), max_size=16)
cut_lists = st.lists(st.integers(0, 20), max_size=6)
options = st.builds(
    TextOptions,
    stops=st.lists(st.text("ab\né\ufffd", min_size=1, max_size=3), max_size=3).map(tuple),
    is_stop_included=st.booleans(),
    skip_special_tokens=st.booleans(),
    min_tokens=st.integers(0, 4),
    echo=st.booleans(),
    num_logprobs=st.integers(-1, 2),
)


def outputs_of(prompt, ids, reason, opts, cuts):
    """Cut prompt entries and tokens into outputs; the last one carries the finish reason."""
    count = opts.num_logprobs
    prompt_entries = []
    if count >= 0 and opts.echo:
        prompt_entries = [TokenLogprobs(prompt[0], None), *(fake_logprobs(i, count) for i in prompt[1:])]
    num_prompt = len(prompt_entries)
    bounds = sorted({0, num_prompt + len(ids), *(min(cut, num_prompt + len(ids)) for cut in cuts)})
    outputs = []
    for start, end in pairwise(bounds) if len(bounds) > 1 else [(0, 0)]:
        part = ids[max(start - num_prompt, 0) : max(end - num_prompt, 0)]
        outputs.append(
            RequestOutput(
                "r",
                token_ids=tuple(part),
                logprobs=tuple(fake_logprobs(i, count) for i in part) if count >= 0 else (),
                prompt_logprobs=tuple(prompt_entries[start:end]),
                finish_reason=reason if end == bounds[-1] else None,
            )
        )
    return outputs


def play(prompt, outputs, opts, num_hidden=0):
    """Feed outputs until the choice ends; return everything that clients may see."""
    choice = ChoiceText(TEXT, opts, PromptText(prompt, num_hidden))
    deltas = []
    for output in outputs:
        deltas.append(choice.feed(output))
        if choice.is_finished:
            break
    aligned = [token for delta in deltas for token in delta.aligned]
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    return {
        "text": "".join(delta.text for delta in deltas),
        "ids": [token_id for delta in deltas for token_id in delta.token_ids],
        "finish": (deltas[-1].finish_reason, deltas[-1].stop_reason),
        "num_tokens": choice.num_tokens,
        "logprobs": completion_logprobs(aligned, TEXT, False),
    }


@given(tokens.filter(bool), tokens, st.booleans(), options, cut_lists, st.integers(0, 1))
def test_a_choice_does_not_depend_on_how_its_outputs_were_cut(prompt, ids, is_stop, opts, cuts, num_hidden):
    reason = "stop" if is_stop and ids else "length"
    whole = play(prompt, outputs_of(prompt, ids, reason, opts, []), opts, num_hidden)
    every_token = play(prompt, outputs_of(prompt, ids, reason, opts, range(40)), opts, num_hidden)
    somehow = play(prompt, outputs_of(prompt, ids, reason, opts, cuts), opts, num_hidden)
    assert whole == every_token == somehow


@given(tokens.filter(bool), tokens, options)
def test_offsets_point_into_the_text_and_every_token_is_listed_once(prompt, ids, opts):
    result = play(prompt, outputs_of(prompt, ids, "length", opts, []), opts)
    logprobs, text = result["logprobs"], result["text"]
    if opts.num_logprobs < 0:
        assert logprobs["tokens"] == []
        return
    num_listed = result["num_tokens"] + (len(prompt) if opts.echo else 0)
    assert {len(column) for column in logprobs.values()} == {num_listed}
    offsets = logprobs["text_offset"]
    assert offsets == sorted(offsets)
    assert all(0 <= offset <= len(text) for offset in offsets)


@given(st.text("ab é", min_size=1, max_size=8), st.text("ab é", min_size=1, max_size=8))
def test_tokens_of_plain_text_join_to_the_text(prompt, answer):
    opts = TextOptions(echo=True, num_logprobs=1)
    prompt_ids, ids = TEXT.encode(prompt, True), TEXT.encode(answer, True)
    result = play(prompt_ids, outputs_of(prompt_ids, ids, "length", opts, []), opts)
    assert "".join(result["logprobs"]["tokens"]) == result["text"] == prompt + answer
    for token, value, top in zip(*list(result["logprobs"].values())[:3], strict=True):
        assert value is None or top[token] == value


def feed(text, opts, reason="length", **output):
    ids = byte_ids(text) if isinstance(text, str) else text
    choice = ChoiceText(TEXT, opts, PromptText(byte_ids("p")))
    return choice, choice.feed(RequestOutput("r", tuple(ids), finish_reason=reason, **output))


def test_a_stop_string_ends_the_choice_at_the_token_that_completes_it():
    choice, delta = feed("say ab, then more", TextOptions(stops=("ab",)), reason=None)
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("say ", "stop", "ab")
    assert choice.num_tokens == len("say ab")
    assert choice.matched_stop == "ab"


def test_a_stop_string_wins_over_a_length_that_is_reached_with_it():
    assert feed("ab", TextOptions(stops=("b",)))[1].finish_reason == "stop"


def test_stop_strings_within_min_tokens_do_not_count():
    opts = TextOptions(stops=("a",), min_tokens=2)
    assert feed("aaXa", opts)[1].text == "aaX"


def test_the_token_that_stopped_a_choice_shows_only_when_asked():
    ids = byte_ids("ab")
    assert feed(ids, TextOptions(), "stop", stop_token_id=ids[-1])[1].text == "a"
    assert feed(ids, TextOptions(is_stop_included=True), "stop", stop_token_id=ids[-1])[1].text == "ab"
    assert feed(ids, TextOptions(), "stop", stop_token_id=ids[-1])[1].stop_reason == ids[-1]


def test_special_tokens_show_only_when_asked():
    ids = [*byte_ids("a"), EOS_ID, *byte_ids("b")]
    assert feed(ids, TextOptions())[1].text == "ab"
    assert feed(ids, TextOptions(skip_special_tokens=False))[1].text == "a<|endoftext|>b"


def test_an_unfinished_character_becomes_a_replacement_at_the_end_and_not_before():
    choice = ChoiceText(TEXT, TextOptions(), PromptText(byte_ids("p")))
    first, second = byte_ids("é")
    assert choice.feed(RequestOutput("r", (first,))).text == ""
    assert choice.feed(RequestOutput("r", (second, first))).text == "é"
    assert choice.feed(RequestOutput("r", (), finish_reason="length")).text == "\ufffd"


def test_minus_infinity_and_nan_never_reach_json():
    opts = TextOptions(num_logprobs=1)
    entries = (TokenLogprobs(2, float("-inf"), ((3, float("nan")),)),)
    choice = ChoiceText(TEXT, opts, PromptText(byte_ids("p")))
    delta = choice.feed(RequestOutput("r", (2,), entries, finish_reason="length"))
    logprobs = completion_logprobs(delta.aligned, TEXT, tokens_as_ids=True)
    assert logprobs["token_logprobs"] == [-9999.0]
    assert logprobs["top_logprobs"] == [{"token_id:3": -9999.0, "token_id:2": -9999.0}]
