"""Random lives of requests against scheduler, cache manager and pools, with a runner that keeps honest books.

Whatever happens in whatever order: slots and blocks add up after every rule, every request ends exactly
once, every completed answer is the one it would have got alone, and nothing is held at the end.
"""

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from toy_engine import ToyEngine, expected_tokens

from mambad.engine.request import Submission
from mambad.engine.sampling_params import SamplingParams

MAX_MODEL_LEN = 48
PROMPTS = st.builds(
    lambda length, first: [(first + 5 * i) % 49 for i in range(length)],
    st.integers(1, MAX_MODEL_LEN),
    st.integers(0, 48),
)


class EngineMachine(RuleBasedStateMachine):
    """One engine with a tiny pool, driven at random."""

    @initialize(
        num_slots=st.sampled_from([1, 1, 2, 4]),
        num_blocks=st.sampled_from([0, 12, 15]),
        runs_ahead=st.sampled_from([True, True, False]),
        budget=st.sampled_from([64, 100]),
        state_cache_bytes=st.sampled_from([1000, 10, 0, 1000]),
        uses_priority=st.sampled_from([True, True, True, False]),
    )
    def start(self, num_slots, num_blocks, runs_ahead, budget, state_cache_bytes, uses_priority):  # type: ignore[no-untyped-def]
        self.toy = ToyEngine(
            num_slots=num_slots,
            num_blocks=num_blocks,
            runs_ahead=runs_ahead,
            max_num_batched_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            state_cache_bytes=state_cache_bytes,
            uses_priority=uses_priority,
            queue_timeout_s=30.0,
        )
        self.asked: dict[str, tuple[list[int], SamplingParams]] = {}

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(0, 40),
        seed=st.integers(0, 3),
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
        num_stop_ids=st.sampled_from([0, 0, 8]),
        priority=st.integers(0, 2),
    )
    def submit(self, prompt, max_tokens, seed, flags, num_stop_ids, priority):  # type: ignore[no-untyped-def]
        name = f"r{len(self.asked)}"
        params = SamplingParams(
            max_tokens=max_tokens,
            seed=seed,
            ignore_eos=flags[0],
            stop_token_ids=tuple(range(num_stop_ids)),
            has_stop_strings=flags[1],
            presence_penalty=0.5 if flags[2] else 0.0,
        )
        self.asked[name] = (prompt, params)
        self.toy.engine.submit(Submission(name, prompt, params, priority))

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.toy.step()

    @rule(back=st.integers(1, 5), reason=st.sampled_from(["disconnect", "cancelled", "timeout"]))
    def abort(self, back: int, reason: str) -> None:
        self.toy.engine.abort(f"r{len(self.asked) - back}", reason)

    @rule(back=st.integers(1, 5), num_kept=st.integers(0, 5))
    def finish_early(self, back: int, num_kept: int) -> None:
        name = f"r{len(self.asked) - back}"
        if name in self.asked and self.asked[name][1].has_stop_strings:
            self.toy.engine.finish_early(name, num_kept)

    @rule(seconds=st.sampled_from([0.1, 1.0, 29.0, 31.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.toy.now += seconds

    @rule(rows=st.integers(1, 4))
    def compute_padding(self, rows: int) -> None:
        self.toy.engine.dummy_step(min(rows, self.toy.cache.slots.capacity))

    @rule()
    def fail_the_next_step(self) -> None:
        self.toy.runner.failing_steps = 1

    @rule()
    def poison_what_is_free(self) -> None:
        self.toy.engine.poison_free()

    @precondition(lambda self: hasattr(self, "toy"))
    @invariant()
    def everything_adds_up(self) -> None:
        cache = self.toy.cache
        assert cache.is_conserved()
        assert cache.slot_counts()["leaked"] == 0
        held = [r for r in self.toy.scheduler.requests if cache.holds(r.key)]
        assert held == [r for r in self.toy.scheduler.requests if r in self.toy.scheduler.requests.running]
        assert cache.slot_counts()["active"] == len(held)
        held_slots = {cache.allocation(r.key).slot.id for r in held}
        for slot, row in enumerate(self.toy.runner.host_table):
            assert slot in held_slots or not row, f"row {slot} names blocks of a request that has gone"

    @precondition(lambda self: hasattr(self, "toy"))
    @invariant()
    def every_completed_answer_is_right(self) -> None:
        for name, output in self.toy.finished.items():
            prompt, params = self.asked[name]
            right = expected_tokens(prompt, params, MAX_MODEL_LEN, self.toy.cache.has_blocks)
            got = self.toy.tokens[name]
            assert got == right[: len(got)]
            if output.finish_reason in ("stop", "length") and not params.has_stop_strings:
                assert got == right

    def teardown(self) -> None:
        if hasattr(self, "toy"):
            self.toy.run()
            self.toy.step()
            self.every_completed_answer_is_right()
            assert self.toy.finished.keys() == self.asked.keys()
            self.toy.assert_all_free()
            assert dataclasses.asdict(self.toy.counters)["finished"].keys() >= {"stop", "error"}


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
