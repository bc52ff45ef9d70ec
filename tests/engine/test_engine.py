"""Every way to end gives everything back; failures stay with their requests. Over the fake runner."""

import logging

import pytest
from toy_engine import EOS, ToyEngine, expected_tokens

from mambad.engine.errors import EngineDeadError
from mambad.engine.sampling_params import SamplingParams

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def test_the_founding_reproduction_answers_in_full_and_frees_every_slot() -> None:
    """vLLM #14820: prompts of 10, 110 and 10 tokens, 128 at most, 2 sequences, 100 tokens, no eos."""
    for runs_ahead in (False, True):
        for num_blocks in (0, 64):
            toy = ToyEngine(
                num_slots=2, num_blocks=num_blocks, runs_ahead=runs_ahead, max_model_len=128,
                max_num_batched_tokens=64,
            )  # fmt: skip
            for i, length in enumerate((10, 110, 10)):
                toy.submit(f"r{i}", [i] * length, max_tokens=100, ignore_eos=True)
            toy.run()
            assert [len(toy.tokens[f"r{i}"]) for i in range(3)] == [100, 18, 100]
            assert {o.finish_reason for o in toy.finished.values()} == {"length"}
            toy.assert_all_free()


def end_by_eos(toy: ToyEngine) -> str:
    params = SamplingParams(max_tokens=200)
    assert EOS in expected_tokens(PROMPT, params, has_blocks=True)
    toy.submit("x", PROMPT, max_tokens=200)
    return "stop"


def end_by_stop_id(toy: ToyEngine) -> str:
    third = expected_tokens(PROMPT, SamplingParams(max_tokens=3, ignore_eos=True), has_blocks=True)[2]
    toy.submit("x", PROMPT, max_tokens=50, ignore_eos=True, stop_token_ids=(third,))
    return "stop"


def end_by_stop_string(toy: ToyEngine) -> str:
    toy.submit("x", PROMPT, max_tokens=50, ignore_eos=True, has_stop_strings=True)
    for _ in range(5):
        toy.step()
    toy.engine.finish_early("x", 2)
    return "stop"


def end_by_length(toy: ToyEngine) -> str:
    toy.submit("x", PROMPT, max_tokens=7, ignore_eos=True)
    return "length"


def end_by_model_length(toy: ToyEngine) -> str:
    toy.submit("x", [1] * 190, max_tokens=100, ignore_eos=True)
    return "length"


def abort_while_queued(toy: ToyEngine) -> str:
    for i in range(4):
        toy.submit(f"other{i}", PROMPT, max_tokens=10)
    toy.submit("x", PROMPT, max_tokens=10)
    toy.step()
    toy.engine.abort("x")
    return "disconnect"


def abort_while_prefilling(toy: ToyEngine) -> str:
    toy.submit("x", [1] * 150, max_tokens=10)
    toy.step()
    toy.engine.abort("x")
    return "disconnect"


def abort_while_decoding(toy: ToyEngine) -> str:
    toy.submit("x", PROMPT, max_tokens=50, ignore_eos=True)
    for _ in range(5):
        toy.step()
    toy.engine.abort("x", "cancelled")
    return "cancelled"


def time_out_in_the_queue(toy: ToyEngine) -> str:
    for i in range(4):
        toy.submit(f"other{i}", PROMPT, max_tokens=30, ignore_eos=True)
    toy.submit("x", PROMPT, max_tokens=10)
    toy.step()
    toy.now += 100
    return "timeout"


def fail_in_a_step(toy: ToyEngine) -> str:
    toy.submit("x", PROMPT, max_tokens=50, ignore_eos=True)
    for _ in range(3):
        toy.step()
    toy.runner.failing_steps = 1
    return "error"


def give_logits_that_are_not_finite(toy: ToyEngine) -> str:
    toy.submit("x", PROMPT, max_tokens=50, ignore_eos=True)
    toy.step()
    toy.runner.nonfinite_keys.add(1)
    return "error"


def shut_down(toy: ToyEngine) -> str:
    toy.submit("x", PROMPT, max_tokens=50, ignore_eos=True)
    for _ in range(3):
        toy.step()
    toy.deliver(toy.engine.shut_down("the server is shutting down"))
    return "shutdown"


ENDS = [
    end_by_eos, end_by_stop_id, end_by_stop_string, end_by_length, end_by_model_length, abort_while_queued,
    abort_while_prefilling, abort_while_decoding, time_out_in_the_queue, fail_in_a_step,
    give_logits_that_are_not_finite, shut_down,
]  # fmt: skip


@pytest.mark.parametrize("budget", [64, 1000], ids=["chunked", "whole"])
@pytest.mark.parametrize("runs_ahead", [False, True], ids=["in-step", "ahead"])
@pytest.mark.parametrize("end", ENDS, ids=[end.__name__ for end in ENDS])
def test_every_way_to_end_frees_everything_and_the_next_request_is_right(
    end,
    runs_ahead: bool,
    budget: int,  # type: ignore[no-untyped-def]
) -> None:
    toy = ToyEngine(
        num_slots=1, num_blocks=50, runs_ahead=runs_ahead, max_model_len=200,
        max_num_batched_tokens=budget, queue_timeout_s=50.0,
    )  # fmt: skip
    reason = end(toy)
    toy.run()
    toy.step()
    assert toy.finished["x"].finish_reason == reason
    assert toy.counters.finished[reason] >= 1
    toy.assert_all_free()
    params = toy.submit("next", [7, 7, 7], max_tokens=20, ignore_eos=True)
    toy.run()
    assert toy.tokens["next"] == expected_tokens([7, 7, 7], params, 200, has_blocks=True)
    toy.assert_all_free()


def test_a_closed_loop_of_short_requests_leaves_the_free_count_unchanged() -> None:
    toy = ToyEngine(num_slots=2, runs_ahead=True)
    for i in range(20):
        toy.submit(f"r{i}", PROMPT, max_tokens=1)
        toy.run()
        toy.assert_all_free()


def test_a_failing_step_ends_its_requests_only_and_the_engine_goes_on() -> None:
    toy = ToyEngine(num_slots=1)
    toy.submit("bad", PROMPT, max_tokens=10)
    params = toy.submit("waiting", PROMPT, max_tokens=10)
    toy.runner.failing_steps = 1
    toy.run()
    assert toy.finished["bad"].error_code == "engine_error"
    assert toy.tokens["waiting"] == expected_tokens(PROMPT, params)


def test_when_the_probe_after_a_failing_step_fails_the_engine_is_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    toy = ToyEngine(num_slots=1)

    def raise_always(*_: object) -> None:
        raise RuntimeError("broken for good")

    monkeypatch.setattr(toy.runner, "_execute", raise_always)
    toy.submit("a", PROMPT)
    with pytest.raises(EngineDeadError, match="broken for good"):
        toy.run()


def test_a_launch_that_raises_is_a_failed_step(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = ToyEngine(num_slots=1)
    launch = toy.runner.launch

    def refuse_once(batch):  # type: ignore[no-untyped-def]
        monkeypatch.setattr(toy.runner, "launch", launch)
        raise RuntimeError("no")

    monkeypatch.setattr(toy.runner, "launch", refuse_once)
    toy.submit("a", PROMPT)
    toy.run()
    assert toy.finished["a"].finish_reason == "error"
    toy.assert_all_free()


def test_a_leaked_slot_is_seen_logged_and_reclaimed(caplog: pytest.LogCaptureFixture) -> None:
    toy = ToyEngine(num_slots=2)
    toy.submit("a", PROMPT, max_tokens=50, ignore_eos=True)
    toy.step()
    toy.cache.slots.forget_owner(toy.cache.allocation(1).slot)
    with caplog.at_level(logging.ERROR):
        toy.engine.audit()
    assert toy.engine.slot_counts()["leaked"] == 1
    assert "slot" in caplog.text
    assert "leaked" in caplog.text
    stats = toy.engine.stats()
    assert (stats.slots_leaked, stats.slots_reclaimed) == (1, 0)
    assert sum(stats.slots.values()) == stats.slot_capacity == 2
    toy.engine.audit()
    toy.scheduler.requests.settle()
    assert toy.engine.stats().slots_reclaimed == 1
    assert toy.engine.slot_counts()["leaked"] == 0


def test_reports_list_held_slots_and_hash_request_names() -> None:
    toy = ToyEngine(num_slots=3)
    toy.submit("secret-name", PROMPT, max_tokens=5, ignore_eos=True)
    toy.step()
    entry = toy.engine.report().state()["entries"][0]
    assert entry["state"] == "active"
    assert entry["num_tokens"] == len(PROMPT)
    assert "secret" not in entry["request"]
    assert toy.engine.report().state(ids=True)["entries"][0]["request"] == "secret-name"
    assert len(toy.engine.report().state(slot_state="free", limit=1)["entries"]) == 1
    assert "entries" not in toy.engine.report().state(entries=False)


@pytest.mark.parametrize("broken", ["swap_in", "swap_out"])
def test_a_swap_that_fails_costs_at_most_its_own_request(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = ToyEngine(num_slots=3, num_blocks=10, max_model_len=40, state_cache_bytes=10**6)
    asked = {
        name: toy.submit(name, [index] * 4, max_tokens=30, ignore_eos=True)
        for index, name in enumerate("abc")
    }

    def fail(*_: object) -> None:
        raise MemoryError("no room on the host")

    monkeypatch.setattr(toy.runner, broken, fail)
    toy.run()
    assert toy.counters.preemptions > 0
    reasons = {name: output.finish_reason for name, output in toy.finished.items()}
    assert ("error" in reasons.values()) == (broken == "swap_in")
    for index, (name, params) in enumerate(asked.items()):
        if reasons[name] == "length":
            assert toy.tokens[name] == expected_tokens([index] * 4, params, 40, has_blocks=True)
    assert toy.scheduler.requests.swapped_bytes == 0
    toy.assert_all_free()
