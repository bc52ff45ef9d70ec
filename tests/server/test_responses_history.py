"""`previous_response_id`: the tokens of the past stand if the prompt goes on from them, else nothing does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_responses import FUNCTION, TEMPLATE, post, prompts_of, serving
from toy_server import EOS_ID, byte_ids, byte_tokenizer, says

from mambad.server.chat_past import ChatPast, TextHash, continued_ids

MERGES = [("h", "e"), ("he", "l"), ("l", "o"), ("<", "u")]


def missed(response):
    return response["mambad"]["cache"]["missed_tokens"]


def ids_of(submission):
    return list(submission.prompt_token_ids)


@pytest.mark.parametrize("settings", [{}, {"instructions": "be brief"}, {"tools": [FUNCTION]}])
def test_the_tokens_that_the_model_wrote_stand(settings):
    text = byte_tokenizer(MERGES)
    spelled = byte_ids("hello")  # not as the tokenizer would
    assert text.encode("hello", False) != spelled
    with serving(lambda submission: [*spelled, EOS_ID], text) as server:
        first = post(server, **settings)
        second = post(server, previous_response_id=first["id"], input="hello", **settings)
        post(server, previous_response_id=second["id"], **settings)
        one, two, three = map(ids_of, server.engine.submissions)
    assert two[: len(one) + len(spelled) + 1] == [*one, *spelled, EOS_ID]
    assert two[len(one) + len(spelled) + 1 :] == text.encode("<user>hello<|endoftext|><assistant>", False)
    assert three[: len(two) + len(spelled) + 1] == [*two, *spelled, EOS_ID]
    assert missed(second) == {"disabled": len(two)}
    assert second["previous_response_id"] == first["id"]


def test_a_conversation_goes_on_as_if_all_of_it_were_sent():
    with serving(says("so")) as server:
        first = post(server)
        second = post(server, previous_response_id=first["id"], input="more")
        assert server.http.delete(f"/v1/responses/{first['id']}").status_code == 200
        post(server, previous_response_id=second["id"], input="last")
        items = [{"role": "user", "content": "hi"}, *first["output"], {"role": "user", "content": "more"}]
        post(server, input=[*items, *second["output"], {"role": "user", "content": "last"}])
        by_id, by_items = prompts_of(server)[-2:]
    assert by_id == by_items
    assert by_id.count("<user>") == 3


def test_instructions_are_not_carried_over():
    with serving(says("so")) as server:
        first = post(server, instructions="be brief")
        second = post(server, previous_response_id=first["id"])
        third = post(server, previous_response_id=second["id"], instructions="be long")
        prompts = prompts_of(server)
        num_tokens = [len(submission.prompt_token_ids) for submission in server.engine.submissions]
    assert ["be brief" in prompt for prompt in prompts] == [True, False, False]
    assert prompts[2].startswith("<system>be long")
    for response, before, after in ((second, *num_tokens[:2]), (third, *num_tokens[1:])):
        num_rewritten = min(before + len("so"), after)
        assert missed(response) == {"history_rewritten": num_rewritten, "disabled": after - num_rewritten}
    assert second["instructions"] is None


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("so. stop it", {"stop": " it"}),  # a stop string is no part of the message
        ('<tool_call>{"arguments": {}, "name": "f"}</tool_call>', {"tools": [FUNCTION]}),  # written anew
    ],
)
def test_what_is_rendered_in_another_way_is_said_to_be(said, asked):
    text = byte_tokenizer(MERGES)
    with serving(says(said), text) as server:
        first = post(server, **asked)
        second = post(server, previous_response_id=first["id"], input="hello", **asked)
        one, two = map(ids_of, server.engine.submissions)
    assert missed(second)["history_rewritten"] > len(one)
    assert sum(missed(second).values()) == len(two)
    rendered = "".join(chr(i - 1) if i else "<|endoftext|>" for i in two if i < 257)
    assert "hello" not in rendered  # because it is encoded as a whole, with its merges


def test_an_answer_that_was_cut_short_goes_on_from_where_it_was_cut():
    with serving(says("abcdef")) as server:
        first = post(server, max_output_tokens=3)
        second = post(server, previous_response_id=first["id"])
        one, two = map(ids_of, server.engine.submissions)
    assert first["status"] == "incomplete"
    assert two[: len(one) + 4] == [*one, *byte_ids("abc"), EOS_ID]
    assert missed(second) == {"disabled": len(two)}


def test_thoughts_stand_if_the_template_shows_them():
    with serving(says("<think>hm</think>so")) as server:
        first = post(server)
        assert [item["type"] for item in first["output"]] == ["reasoning", "message"]
        second = post(server, previous_response_id=first["id"])
        assert "history_rewritten" not in missed(second)
    forgetful = TEMPLATE.replace("m.reasoning_content %}", "false %}")
    with serving(says("<think>hm</think>so"), template=forgetful) as server:
        first = post(server)
        second = post(server, previous_response_id=first["id"])
        assert "history_rewritten" in missed(second)


def test_a_response_can_be_continued_without_new_input():
    with serving(says("so")) as server:
        first = post(server)
        post(server, input=None, previous_response_id=first["id"])
        assert prompts_of(server)[1] == "<user>hi<|endoftext|><assistant>so<|endoftext|><assistant>"


def test_what_is_stored_says_how_the_state_came_to_be():
    with serving(says("so")) as server:
        post(server)
        post(server, max_output_tokens=1)
        store = server.context.response_store
        records = [record for _, record in store._records.values()]
    (num_prompt,) = {len(submission.prompt_token_ids) for submission in server.engine.submissions}
    runs = [[(run.kind, run.num_tokens) for run in record.runs] for record in records]
    assert runs == [[("prefill", num_prompt), ("decode", 2)], [("prefill", num_prompt), ("decode", 0)]]
    assert [len(record.past.token_ids) for record in records] == [num_prompt + 2, num_prompt + 1]
    assert [record.state_id for record in records] == [None, None]
    assert all(record.num_bytes > 1000 for record in records)


@given(st.text(max_size=6), st.text(max_size=6), st.text(max_size=3))
def test_a_prompt_goes_on_from_the_past_or_it_does_not(before, after, other):
    text = byte_tokenizer(MERGES)
    past = ChatPast([5, 7], len(before), TextHash(before).digest)
    ids = continued_ids(before + after, past, text)
    assert ids == [5, 7, *text.encode(after, False)]
    joined = TextHash(before).followed_by(after)
    assert (joined.num_chars, joined.digest) == (len(before + after), TextHash(before + after).digest)
    if not (other + after).startswith(before):
        assert continued_ids(other + after, past, text) is None
