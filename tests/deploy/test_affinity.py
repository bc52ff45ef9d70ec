"""`mambad_ray.affinity`: keys that a conversation keeps, and replicas that keep their share."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "deploy" / "ray"))
from mambad_ray.affinity import PREFIX_LENGTH, choices, key_of, ranked
from mambad_ray.scaling import by_slots, wanted_replicas

KEYS = [f"session:{number}" for number in range(2000)]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    "prompt",
    "messages",
    "input",
    "instructions",
    "user",
    "prompt_cache_key",
    "role",
    "content",
    "text",
)


def user(text: object) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("headers", "body", "key"),
    [
        ({"x-session-id": " s "}, {"prompt_cache_key": "other"}, "session:s"),
        ({"x-session-id": ""}, {"prompt_cache_key": "c", "user": "u"}, "session:c"),
        ({}, {"user": "u", "prompt": "x"}, "session:u"),
        ({}, {"user": "", "prompt": "x" * 5000}, "prefix:" + "x" * PREFIX_LENGTH),
        ({}, {"prompt": ["first", "second"]}, "prefix:first"),
        ({}, {"prompt": [1, 2]}, "prefix:[1, 2]"),
        ({}, {"prompt": [[1, 2], [3]]}, "prefix:[1, 2]"),
        ({}, {"input": "hi", "instructions": "be"}, "prefix:be\nuser:hi"),
        ({}, {}, None),
        ({}, [], None),
        ({}, None, None),
        ({}, {"messages": 7}, None),
    ],
)
def test_what_the_key_is(headers: dict[str, str], body: object, key: str | None) -> None:
    assert key_of(headers, body) == key


def test_later_turns_of_a_chat_have_the_key_of_the_first() -> None:
    opening = [{"role": "system", "content": "s" * 4000}, user([{"type": "text", "text": "hello"}])]
    later = [*opening, {"role": "assistant", "content": "hi"}, user("and then?")]
    key = key_of({}, {"messages": opening})
    assert key == key_of({}, {"messages": later}) == key_of({}, {"input": later})
    assert key != key_of({}, {"messages": [opening[0], user("goodbye")]}), "the system prompt hides the user"


@given(
    st.dictionaries(st.sampled_from(FIELDS), JSON | st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON)))
)
def test_any_body_has_a_key_or_none_of_bounded_length(body: dict[str, Any]) -> None:
    key = key_of({}, body)
    assert key is None or 0 < len(key) <= 16 * (PREFIX_LENGTH + 64)
    assert key is None or sorted(ranked(key, "abc")) == ["a", "b", "c"]


def test_a_replica_takes_only_its_own_share_with_it() -> None:
    names = ["one", "two", "three", "four"]
    before = {key: ranked(key, names) for key in KEYS}
    shares = Counter(order[0] for order in before.values())
    assert all(400 < shares[name] < 600 for name in names)
    for lost in names:
        rest = [name for name in reversed(names) if name != lost]
        for key, order in before.items():
            assert ranked(key, rest) == [name for name in order if name != lost]


def test_a_conversation_waits_for_its_replica_and_a_prompt_goes_on() -> None:
    names = ["one", "two", "three"]
    assert choices(None, names) == [names]
    assert choices("session:x", names) == [ranked("session:x", names)[:1]]
    assert choices("prefix:x", names) == [[name] for name in ranked("prefix:x", names)]
    assert choices("session:x", []) == [[]]


class Context:
    """What Ray Serve tells a policy."""

    target_num_replicas = 2

    def __init__(self, queued: float | None, in_flight: float = 0, **metrics: list[float]) -> None:
        self.total_queued_requests = queued
        self.total_num_requests = in_flight + (queued or 0)
        self.aggregated_metrics = {name: dict(enumerate(values)) for name, values in metrics.items()}


@pytest.mark.parametrize(
    ("context", "wanted"),
    [
        (Context(0), 2),
        (Context(9, running=[], waiting=[]), 2),
        (Context(0, running=[0, 0], waiting=[0, 0], slots=[8, 8]), 0),
        (Context(0, running=[6], waiting=[0], slots=[8]), 1),
        (Context(0, running=[7], waiting=[0], slots=[8]), 2),
        (Context(3, running=[8, 2], waiting=[5, 0], slots=[8, 8]), 3),
        (Context(None, running=[8], waiting=[52], slots=[8]), 10),
        (Context(0, 7, running=[1], waiting=[0], slots=[8]), 2),
        (Context(3, 12, running=[8], waiting=[4], slots=[8]), 3),
    ],
)
def test_replicas_follow_slots_and_queue(context: Context, wanted: int) -> None:
    assert by_slots(context) == (wanted, {})


def test_no_load_wants_no_replica_and_more_load_never_fewer() -> None:
    assert wanted_replicas(0, 8) == 0
    counts = [wanted_replicas(load, 8) for load in range(100)]
    assert counts == sorted(counts)
