"""A slot that a launched step still writes is nobody's: without the quarantine, answers are wrong.

One slot. A patient request is preempted for an urgent one, which ends with an end-of-sequence token while
the next step, launched ahead, still holds its row. The patient one's state is copied back into the slot at
once when it is admitted: too early, and the launched step writes over it.
"""

import time

import pytest
from toy_equality import EqualityEngine, Record, load_toy

from mambad.engine.id_pool import IdPool

PATIENT, URGENT = [5, 6, 7, 8] * 10, [9, 8, 7]
STEP_S = 0.03
"""How long each step is held back: longer than the engine needs to admit a request."""


def run_alone(name: str, prompt: list[int], seed: int, max_tokens: int, eos: list[int]) -> Record:
    engine = EqualityEngine(load_toy("granite", "reference"), num_slots=1, eos_token_ids=eos)
    engine.submit(name, prompt, seed=seed, max_tokens=max_tokens, ignore_eos=name == "patient")
    return engine.run()[name]


def run_both(eos: list[int]) -> EqualityEngine:
    engine = EqualityEngine(
        load_toy("granite", "reference"),
        num_slots=1,
        runs_ahead=True,
        uses_priority=True,
        eos_token_ids=eos,
        reads_states=False,
        gate=lambda _: time.sleep(STEP_S),
    )
    engine.submit("patient", PATIENT, seed=1, priority=1, max_tokens=20, ignore_eos=True)
    for _ in range(6):
        engine.step()
    engine.submit("urgent", URGENT, seed=2, priority=0, max_tokens=40)
    return engine


@pytest.fixture(scope="module")
def eos() -> list[int]:
    """An id that the urgent request draws at some point, not first."""
    return [run_alone("urgent", URGENT, 2, 40, [])].pop().tokens[4:5]


def test_the_preempted_request_goes_on_as_if_undisturbed(eos: list[int]) -> None:
    records = run_both(eos).run()
    assert records["urgent"].finish_reason == "stop"
    right = run_alone("patient", PATIENT, 1, 20, [])
    assert records["patient"].tokens == right.tokens
    assert records["patient"].logprobs == right.logprobs


def test_without_the_quarantine_its_answer_is_wrong(eos: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    retire = IdPool._retire

    def free_at_once(pool: IdPool, id_: int, until_step: int, completed_step: int, now: float) -> bool:
        return retire(pool, id_, 0, completed_step, now)

    monkeypatch.setattr(IdPool, "_retire", free_at_once)
    records = run_both(eos).run()
    assert records["patient"].tokens != run_alone("patient", PATIENT, 1, 20, []).tokens
