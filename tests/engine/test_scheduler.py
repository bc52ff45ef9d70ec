"""What runs when: budget, order, preemption, limits. Over the fake runner, whose states are honest hashes."""

import pytest
from toy_engine import EOS, ToyEngine, expected_tokens

from mambad.engine.batch import Batch
from mambad.engine.request import Submission
from mambad.engine.sampling_params import SamplingParams

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
RUNS_AHEAD = pytest.mark.parametrize("runs_ahead", [False, True])


def batches(toy: ToyEngine) -> list[Batch]:
    """Record every batch that the runner launches from now on."""
    seen: list[Batch] = []
    launch = toy.runner.launch

    def record(batch: Batch):  # type: ignore[no-untyped-def]
        seen.append(batch)
        return launch(batch)

    toy.runner.launch = record  # type: ignore[method-assign]
    return seen


def test_a_long_prompt_is_prefilled_in_spans_within_the_budget() -> None:
    toy = ToyEngine(max_num_batched_tokens=130)
    seen = batches(toy)
    toy.submit("a", [1] * 300, max_tokens=1)
    toy.run()
    assert [(s.start, s.start + len(s.token_ids)) for b in seen for s in b.prefills] == [
        (0, 128),
        (128, 256),
        (256, 300),
    ]
    assert seen[0].prefills[0].chunk_ends == (64, 128)


def test_decode_rows_come_before_prefill_and_a_prefill_always_gets_a_chunk() -> None:
    toy = ToyEngine(num_slots=40, max_num_batched_tokens=64)
    for i in range(30):
        toy.submit(f"d{i}", [i], max_tokens=50, ignore_eos=True)
    toy.step()
    toy.submit("long", [1] * 200, max_tokens=1)
    seen = batches(toy)
    toy.step()
    assert len(seen[0].decodes) == 30
    assert [len(span.token_ids) for span in seen[0].prefills] == [64]


def test_running_never_exceeds_the_slots_and_all_finish() -> None:
    toy = ToyEngine(num_slots=3, max_num_seqs=3)
    for i in range(15):
        toy.submit(f"r{i}", PROMPT, max_tokens=4, seed=i)
    while toy.engine.has_work:
        toy.step()
        assert len(toy.scheduler.requests.running) <= 3
    assert len(toy.finished) == 15
    toy.assert_all_free()


def test_requests_are_admitted_in_the_order_of_arrival() -> None:
    toy = ToyEngine(num_slots=1)
    for i in range(4):
        toy.submit(f"r{i}", PROMPT, max_tokens=2)
    toy.run()
    assert list(toy.finished) == ["r0", "r1", "r2", "r3"]


@RUNS_AHEAD
@pytest.mark.parametrize("state_cache_bytes", [0, 10, 10**6])
def test_preemption_by_swap_and_by_replay_changes_no_token(runs_ahead: bool, state_cache_bytes: int) -> None:
    toy = ToyEngine(
        num_slots=4,
        num_blocks=16,
        runs_ahead=runs_ahead,
        max_model_len=64,
        state_cache_bytes=state_cache_bytes,
    )
    asked = {
        f"r{i}": toy.submit(f"r{i}", [i, 7, 8], max_tokens=40, seed=i, ignore_eos=True) for i in range(4)
    }
    toy.run()
    assert toy.counters.preemptions > 0
    for i, (name, params) in enumerate(asked.items()):
        assert toy.tokens[name] == expected_tokens([i, 7, 8], params, 64, has_blocks=True)
    assert toy.scheduler.requests.swapped_bytes == 0
    toy.assert_all_free()


def test_the_oldest_running_request_is_never_preempted() -> None:
    toy = ToyEngine(num_slots=3, num_blocks=10, max_model_len=40)
    for i in range(3):
        toy.submit(f"r{i}", [i] * 4, max_tokens=36, ignore_eos=True)
    toy.step()
    oldest = toy.scheduler.requests.by_id("r0")
    assert oldest is not None
    toy.run()
    assert oldest.num_preemptions == 0
    assert toy.counters.preemptions > 0
    assert next(iter(toy.finished)) == "r0"


def test_a_preempted_request_is_first_in_line() -> None:
    toy = ToyEngine(num_slots=2, num_blocks=10, max_model_len=40)
    for name in "abc":
        toy.submit(name, [1] * 4, max_tokens=30, ignore_eos=True)
    toy.run()
    assert list(toy.finished) == ["a", "b", "c"]


def test_under_the_priority_policy_an_urgent_request_takes_the_slot() -> None:
    toy = ToyEngine(num_slots=1, uses_priority=True, state_cache_bytes=100)
    low, high = SamplingParams(max_tokens=30, ignore_eos=True), SamplingParams(max_tokens=3, ignore_eos=True)
    toy.engine.submit(Submission("low", PROMPT, low, 5))
    for _ in range(4):
        toy.step()
    toy.engine.submit(Submission("high", PROMPT, high, 1))
    toy.run()
    assert list(toy.finished) == ["high", "low"]
    assert toy.tokens["low"] == expected_tokens(PROMPT, low)


def test_under_fcfs_an_urgent_request_waits() -> None:
    toy = ToyEngine(num_slots=1)
    toy.engine.submit(Submission("a", PROMPT, SamplingParams(max_tokens=5, ignore_eos=True), 5))
    toy.step()
    toy.engine.submit(Submission("b", PROMPT, SamplingParams(max_tokens=1), 1))
    toy.run()
    assert toy.counters.preemptions == 0


def test_a_request_that_waits_too_long_is_refused_and_holds_nothing() -> None:
    toy = ToyEngine(num_slots=1, queue_timeout_s=5.0)
    toy.submit("a", PROMPT, max_tokens=100, ignore_eos=True)
    toy.submit("b", PROMPT, max_tokens=1)
    toy.step()
    toy.now = 6.0
    toy.step()
    assert toy.finished["b"].finish_reason == "timeout"
    assert toy.finished["b"].error_code == "queue_timeout"
    toy.run()
    toy.assert_all_free()


def test_a_preempted_request_does_not_time_out() -> None:
    toy = ToyEngine(num_slots=2, num_blocks=10, max_model_len=40, queue_timeout_s=0.5)
    for name in "ab":
        toy.submit(name, [1] * 4, max_tokens=30, ignore_eos=True)
    while toy.engine.has_work:
        toy.now += 0.2
        toy.step()
    assert {o.finish_reason for o in toy.finished.values()} == {"length"}
    assert toy.counters.preemptions > 0


def test_run_ahead_skips_rows_whose_next_token_needs_the_host() -> None:
    toy = ToyEngine(num_slots=5, runs_ahead=True)
    toy.submit("plain", PROMPT, max_tokens=20, ignore_eos=True)
    toy.submit(
        "masks", PROMPT, max_tokens=20, ignore_eos=True, bad_words=((1,), (2,)), allowed_token_ids=(5,)
    )
    toy.submit("words", PROMPT, max_tokens=20, ignore_eos=True, bad_words=((1, 2),))
    toy.submit("stops", PROMPT, max_tokens=20, ignore_eos=True, has_stop_strings=True)
    toy.submit("penalty", PROMPT, max_tokens=20, ignore_eos=True, presence_penalty=1.0)
    seen = batches(toy)
    toy.run()
    ahead = {row.slot for batch in seen for row in batch.decodes if row.token_id == -1}
    assert len(ahead) == 2, "the plain one and the one whose masks are always the same"
    assert {o.finish_reason for o in toy.finished.values()} == {"length"}


def test_run_ahead_never_computes_past_a_length_limit() -> None:
    for limits in ({"max_tokens": 5}, {"max_tokens": 500}):
        toy = ToyEngine(num_slots=1, runs_ahead=True, max_model_len=13)
        toy.submit("a", PROMPT, ignore_eos=True, **limits)
        toy.run()
        assert sum(toy.runner.num_rows) == 5


def test_an_end_of_sequence_token_during_run_ahead_quarantines_the_slot() -> None:
    toy = ToyEngine(num_slots=1, runs_ahead=True)
    prompt = next([n] for n in range(40) if EOS in expected_tokens([n], SamplingParams(max_tokens=30))[1:20])
    toy.submit("a", prompt, max_tokens=30)
    while "a" not in toy.finished:
        toy.step()
    assert toy.engine.slot_counts()["quarantined"] == 1
    toy.step()
    toy.assert_all_free()


def test_zero_max_tokens_scores_the_prompt_and_generates_nothing() -> None:
    toy = ToyEngine()
    toy.submit("a", PROMPT, max_tokens=0)
    toy.run()
    assert toy.tokens["a"] == []
    assert toy.finished["a"].finish_reason == "length"
    assert toy.counters.prompt_tokens == len(PROMPT)


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_steps_count_every_token_that_they_compute(runs_ahead: bool) -> None:
    toy = ToyEngine(num_slots=2, runs_ahead=runs_ahead, max_num_batched_tokens=64)
    for name in "abc":
        toy.submit(name, PROMPT * 4, max_tokens=10, ignore_eos=True)
    toy.run()
    toy.engine.dummy_step(2)
    step_tokens = toy.engine.stats().step_tokens
    assert step_tokens is not None
    computed = 3 * (4 * len(PROMPT) + 9)
    assert computed <= step_tokens.sum <= computed + 3, "at most one token a request is computed past its end"
    assert sum(step_tokens.counts[:2]) > 0, "decodes of up to 8 rows"
    assert sum(step_tokens.counts[3:5]) > 0, "prompts of 32"
    assert sum(step_tokens.counts[5:]) == 0, "more than the budget of 64"


def test_counters_add_up_over_preemption_and_early_finish() -> None:
    toy = ToyEngine(num_slots=2, num_blocks=10, max_model_len=40)
    toy.submit("a", [1] * 4, max_tokens=30, ignore_eos=True)
    toy.submit("b", [2] * 4, max_tokens=30, ignore_eos=True)
    toy.submit("c", [3] * 4, max_tokens=30, ignore_eos=True, has_stop_strings=True)
    while len(toy.tokens.get("c", [])) < 6:
        toy.step()
    toy.engine.finish_early("c", 4)
    toy.run()
    assert toy.counters.prompt_tokens == 12
    assert toy.counters.generation_tokens == 30 + 30 + 4
    assert toy.counters.finished["stop"] == 1


def test_scrubbing_zeroes_each_slot_when_it_becomes_free() -> None:
    toy = ToyEngine(num_slots=2, scrub_slots=True, runs_ahead=True)
    for i in range(4):
        toy.submit(f"r{i}", PROMPT, max_tokens=3, seed=i)
    toy.run()
    toy.step()
    assert len(toy.runner.scrubbed) == 4
    assert toy.runner.states[1:] == [b"", b""]


def test_a_second_request_of_the_same_id_is_refused_and_the_first_goes_on() -> None:
    toy = ToyEngine()
    params = toy.submit("a", PROMPT, max_tokens=5, ignore_eos=True)
    toy.step()
    toy.scheduler.add(Submission("a", PROMPT, params))
    outputs = toy.scheduler.take_outputs()
    assert [o.error_code for o in outputs] == ["invalid_value"]
    toy.run()
    assert toy.tokens["a"] == expected_tokens(PROMPT, params)


@pytest.mark.parametrize("prompt", [[], [1] * 1001])
def test_a_prompt_of_impossible_length_is_an_error_and_no_more(prompt: list[int]) -> None:
    toy = ToyEngine()
    toy.submit("a", prompt)
    toy.run()
    toy.step()
    assert toy.finished["a"].finish_reason == "error"
    toy.assert_all_free()
