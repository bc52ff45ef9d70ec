"""StopMatcher against a plain search, for random texts, stop strings and cuts."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mambad.server.stop_strings import StopMatcher

texts = st.text("ab", max_size=24)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def plain_search(text: str, stops: list[str], is_included: bool) -> tuple[str, str | None]:
    """The stop that is complete first, of several the longest; looked for at every end in turn."""
    for end in range(1, len(text) + 1):
        found = max((stop for stop in stops if text[:end].endswith(stop)), key=len, default=None)
        if found is not None:
            return text[: end if is_included else end - len(found)], found
    return text, None


def run(pieces: list[str], stops: list[str], is_included: bool = False) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops, is_included)
    shown = []
    for piece in pieces:
        shown.append(matcher.push(piece))
        if matcher.matched is not None:
            return shown, matcher.matched
    return [*shown, matcher.flush()], None


@given(texts, stop_lists, st.lists(st.integers(0, 24), max_size=8), st.booleans())
def test_any_cutting_of_a_text_gives_what_a_plain_search_gives(text, stops, cuts, is_included):
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(bounds)]
    shown, matched = run(pieces, stops, is_included)
    assert ("".join(shown), matched) == plain_search(text, stops, is_included)


@given(texts, stop_lists.filter(bool))
def test_no_more_is_held_back_than_may_become_a_stop_string(text, stops):
    matcher = StopMatcher(stops)
    shown = ""
    for char in text:
        shown += matcher.push(char)
        if matcher.matched is not None:
            return
    held = text[len(shown) :]
    assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_stop_string_across_four_pieces_never_shows():
    assert run(["say <", "|e", "n", "d|>more"], ["<|end|>"]) == (["say ", "", "", ""], "<|end|>")


def test_a_false_start_is_shown_as_soon_as_it_is_known_to_be_one():
    assert run(["a<", "|e", "x", "b"], ["<|end|>"]) == (["a", "", "<|ex", "b", ""], None)


def test_a_stop_string_at_the_first_character_leaves_nothing():
    assert run(["\nhello"], ["\n"]) == ([""], "\n")


def test_the_stop_string_that_is_complete_first_wins():
    assert run(["xabcd"], ["abcd", "bc"]) == (["xa"], "bc")
    assert run(["xabc"], ["abc", "bc"]) == (["x"], "abc")
