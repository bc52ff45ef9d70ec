"""The property machine finds every one of six seeded bugs, and a small example of each."""

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from mutants import MUTANTS, Mutant
from test_engine_properties import EngineMachine

from mambad.engine.id_pool import PoolError


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.__name__ for mutant in MUTANTS])
def test_the_property_machine_kills_the_mutant(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    num_examples = 0

    class Counting(EngineMachine):
        def __init__(self) -> None:
            nonlocal num_examples
            num_examples += 1
            super().__init__()

    phases = (Phase.explicit, Phase.generate)
    found = settings(
        max_examples=3000, stateful_step_count=50, deadline=None, phases=phases, database=None,
        derandomize=True, report_multiple_bugs=False, print_blob=False,
    )  # fmt: skip
    # Whatever notices it: an assertion of the machine, a pool's own check, a missing key.
    with pytest.raises((AssertionError, PoolError, LookupError)) as caught:
        run_state_machine_as_test(Counting, settings=found)
    what = str(caught.value).splitlines()[:1]
    print(f"\n{mutant.__name__}: {type(caught.value).__name__} {what} after {num_examples} examples")
