"""Where prefills may be split."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mambad.engine.cuts import CHUNK_SIZE, chunk_ends, find_cuts, furthest_end

TOKENS = st.lists(st.integers(0, 9), max_size=400)


def test_cuts_of_a_plain_prompt_are_every_64_tokens() -> None:
    assert find_cuts([1] * 200) == [64, 128, 192]
    assert find_cuts([1] * 64) == [64]
    assert find_cuts([1] * 63) == []


def test_an_end_of_message_token_is_a_cut_and_starts_the_count_anew() -> None:
    tokens = [1] * 70 + [9] + [1] * 100
    assert find_cuts(tokens, {9}) == [64, 71, 135]


def test_two_ends_of_message_in_a_row_are_two_cuts() -> None:
    assert find_cuts([9, 9, 1], {9}) == [1, 2]


@given(TOKENS, st.sets(st.integers(0, 9), max_size=2), st.integers(0, 400))
def test_cuts_depend_on_the_tokens_before_them_only(tokens: list[int], ends: set[int], length: int) -> None:
    cuts = find_cuts(tokens, ends)
    assert find_cuts(tokens[:length], ends) == [cut for cut in cuts if cut <= min(length, len(tokens))]


@given(TOKENS, st.sets(st.integers(0, 9), max_size=2))
def test_no_chunk_is_empty_or_longer_than_the_chunk_size(tokens: list[int], ends: set[int]) -> None:
    grid = [0, *chunk_ends(find_cuts(tokens, ends), 0, len(tokens))]
    sizes = [end - start for start, end in itertools.pairwise(grid)]
    assert all(0 < size <= CHUNK_SIZE for size in sizes) or not tokens


@given(TOKENS, st.integers(1, 500))
def test_spans_under_any_budget_end_at_cuts_and_make_progress(tokens: list[int], budget: int) -> None:
    cuts, start = find_cuts(tokens, {9}), 0
    while start < len(tokens):
        end = furthest_end(cuts, start, len(tokens), max(budget, CHUNK_SIZE))
        assert end > start
        assert end == len(tokens) or end in cuts
        assert end - start <= max(budget, CHUNK_SIZE)
        start = end


def test_a_budget_that_reaches_no_cut_gives_an_empty_span() -> None:
    assert furthest_end([64, 128], 64, 200, 63) == 64
