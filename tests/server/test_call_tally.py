"""CallTally: whatever is known first, and whenever it is read, the series add up and never fall."""

from hypothesis import given
from hypothesis import strategies as st

from mambad.server.call_tally import CallTally

EVENTS = st.lists(st.sampled_from(["plain", "call", "engine", "front", "read"]), max_size=40)


def finished(num_stops):
    return {"stop": num_stops, "length": 3}


@given(EVENTS)
def test_series_add_up_to_the_engines_count_and_never_fall(events):
    tally = CallTally()
    num_stops = num_calls = 0
    before = tally.split(finished(0))
    for event in events:
        if event == "front":
            tally.count()
            num_calls += 1
        elif event != "read":
            num_stops += 1
        counts = tally.split(finished(num_stops))
        assert counts["stop"] + counts["tool_calls"] == num_stops
        assert counts["tool_calls"] <= num_calls
        assert counts["length"] == 3
        assert all(counts[reason] >= before[reason] for reason in counts)
        before = counts


@given(st.integers(0, 9), st.integers(0, 9), st.booleans())
def test_counts_are_exact_when_nothing_was_read_in_between(num_plain, num_calls, is_read_first):
    tally = CallTally()
    if is_read_first:
        tally.split(finished(0))
    for _ in range(num_calls):
        tally.count()
    counts = tally.split(finished(num_plain + num_calls))
    assert (counts["stop"], counts["tool_calls"]) == (num_plain, num_calls)


def test_a_call_that_was_read_as_a_stop_is_made_up_for_by_the_next_stop():
    tally = CallTally()
    assert tally.split(finished(1)) == {"stop": 1, "length": 3, "tool_calls": 0}
    tally.count()
    assert tally.split(finished(1))["tool_calls"] == 0
    assert tally.split(finished(2)) == {"stop": 1, "length": 3, "tool_calls": 1}
