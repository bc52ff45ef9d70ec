"""Requests with grammars in the engine: they wait for the compiler and hold nothing meanwhile, or end."""

from collections.abc import Iterator

import pytest
from toy_engine import ToyEngine

from mambad.engine.constraints import Constraints
from mambad.engine.grammar import RequestGrammar, Vocabulary
from mambad.engine.grammar_spec import Grammar

ANY = Grammar(kind="regex", text=r"[\x00-\x7f]{1,1000}")
BYTES = Vocabulary.of_bytes()


class SlowCompiler:
    """Compiles when the test says so."""

    def __init__(self) -> None:
        self.opened: list[RequestGrammar] = []

    def open(self, grammar: Grammar, ignore_eos: bool = False) -> RequestGrammar:
        self.opened.append(RequestGrammar(ignore_eos))
        return self.opened[-1]

    def finish(self, index: int) -> None:
        self.opened[index].begin(BYTES, BYTES.compile(ANY))


@pytest.fixture
def compiler() -> SlowCompiler:
    return SlowCompiler()


@pytest.fixture(params=[False, True], ids=["in turn", "ahead"])
def toy(request: pytest.FixtureRequest, compiler: SlowCompiler) -> Iterator[ToyEngine]:
    made = ToyEngine(num_slots=1, num_blocks=40, runs_ahead=request.param)
    requests = made.scheduler.requests
    made.scheduler._constraints = Constraints(requests, made.limits.eos_token_ids, compiler)  # type: ignore[arg-type]
    yield made
    assert made.engine.slot_counts()["active"] == 0
    assert len(requests) == 0


def run(toy: ToyEngine) -> None:
    for _ in range(200):
        if not toy.engine.has_work:
            return
        toy.step()
    raise AssertionError("it never ends")


def test_who_waits_for_a_grammar_holds_no_slot_and_keeps_nobody_waiting(
    toy: ToyEngine, compiler: SlowCompiler
) -> None:
    toy.submit("bound", [1, 2, 3], max_tokens=4, grammar=ANY, ignore_eos=True)
    toy.step()
    assert toy.engine.is_blocked
    assert toy.engine.has_work
    assert toy.engine.slot_counts()["active"] == 0
    toy.submit("free", [4, 5], max_tokens=4, ignore_eos=True)
    while "free" not in toy.finished:
        toy.step()
    assert "bound" not in toy.tokens
    compiler.finish(0)
    run(toy)
    assert len(toy.tokens["bound"]) == 4


def test_a_request_keeps_the_place_of_its_arrival(toy: ToyEngine, compiler: SlowCompiler) -> None:
    toy.submit("running", [1], max_tokens=3, ignore_eos=True)
    toy.step()
    toy.submit("bound", [2], max_tokens=3, grammar=ANY, ignore_eos=True)
    toy.submit("later", [3], max_tokens=3, ignore_eos=True)
    toy.step()
    compiler.finish(0)
    run(toy)
    assert list(toy.finished) == ["running", "bound", "later"]


@pytest.mark.parametrize("is_compiled", [False, True])
def test_aborts_and_the_end_of_the_server_reach_who_waits_for_a_grammar(
    toy: ToyEngine, compiler: SlowCompiler, is_compiled: bool
) -> None:
    for name in ("aborted", "left"):
        toy.submit(name, [1], grammar=ANY)
    toy.step()
    for index in range(2 if is_compiled else 0):
        compiler.finish(index)
    toy.engine.abort("aborted")
    toy.deliver(toy.engine.shut_down("bye"))
    run(toy)
    reasons = {name: output.finish_reason for name, output in toy.finished.items()}
    assert reasons == {"aborted": "disconnect", "left": "shutdown"}
    for index in range(2):
        compiler.finish(index)
    toy.step()
    assert toy.engine.is_blocked


def test_a_grammar_that_fails_ends_its_request(toy: ToyEngine, compiler: SlowCompiler) -> None:
    toy.submit("bad", [1], grammar=ANY)
    toy.submit("free", [2], max_tokens=2, ignore_eos=True)
    toy.step()
    compiler.opened[0].fail("no", "invalid_grammar")
    run(toy)
    output = toy.finished["bad"]
    assert (output.finish_reason, output.error_code) == ("error", "invalid_grammar")
    assert toy.finished["free"].finish_reason == "length"


def test_an_engine_without_a_tokenizer_refuses_grammars() -> None:
    toy = ToyEngine()
    toy.submit("bound", [1], grammar=ANY)
    toy.submit("free", [2], max_tokens=2, ignore_eos=True)
    run(toy)
    assert toy.finished["bound"].error_code == "invalid_grammar"
    assert toy.finished["free"].finish_reason == "length"


def test_an_id_in_use_is_refused_with_a_grammar_too(toy: ToyEngine, compiler: SlowCompiler) -> None:
    toy.submit("same", [1], grammar=ANY, max_tokens=2, ignore_eos=True)
    made = toy.scheduler.requests.by_id("same")
    toy.submit("same", [2], grammar=ANY)
    assert toy.scheduler.requests.by_id("same") is made
    assert [output.error_code for output in toy.engine.step()] == ["invalid_value"]
    compiler.finish(0)
    run(toy)
    assert toy.finished["same"].finish_reason == "length"
