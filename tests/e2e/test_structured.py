"""Constrained answers of the demo model: they keep to their grammar, and nobody beside them notices.

In the engine first, where steps can be chosen; then over HTTP, through the front end's check.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tokenizers import Tokenizer
from toy_process import ServedProcess, metric, serve, wait_until_all_slots_are_free

from mambad.engine import token_masks
from mambad.engine.build import build_engine
from mambad.engine.config import EngineConfig
from mambad.engine.engine import Engine
from mambad.engine.grammar_spec import Grammar
from mambad.engine.outputs import RequestOutput
from mambad.engine.request import Submission
from mambad.engine.sampling_params import SamplingParams

DEMO = Path(__file__).resolve().parents[2] / "configs" / "demo"
TOKENIZER = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["king", "queen", "fool"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
JSON = Grammar(kind="json", text=json.dumps(PERSON))
DATE = Grammar(kind="regex", text=r"\d{4}-\d{2}-\d{2}")
LARK = Grammar(kind="lark", text='start: "SELECT " NAME (", " NAME)~0..2 " FROM " NAME\nNAME: /[a-z]{1,8}/')


class Answers:
    """An engine of the demo model and everything that it delivered.

    Attributes:
        tokens, ended: output tokens, and the last output, by request id.
    """

    def __init__(self, **config: Any) -> None:
        values: dict[str, Any] = {"max_num_seqs": 8, "kv_cache_memory_bytes": 64 << 20, "threads": 1}
        self.engine: Engine
        self.engine, self.info = build_engine(EngineConfig(model=str(DEMO), **(values | config)))
        self.tokens: dict[str, list[int]] = {}
        self.ended: dict[str, RequestOutput] = {}
        self.logprobs: dict[str, list[Any]] = {}

    def ask(self, name: str, prompt: str = "A thing: ", priority: int = 0, **params: Any) -> None:
        made = SamplingParams(**({"max_tokens": 300} | params))
        self.engine.submit(Submission(name, TOKENIZER.encode(prompt).ids, made, priority))

    def step(self) -> None:
        self.take(self.engine.step())

    def take(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
            self.logprobs.setdefault(output.request_id, []).extend(output.logprobs)
            if output.finish_reason is not None:
                self.ended[output.request_id] = output

    def run(self) -> "Answers":
        while self.engine.has_work:
            self.step()
        return self

    def text(self, name: str) -> str:
        return str(TOKENIZER.decode(self.tokens[name]))

    def reason(self, name: str) -> str | None:
        return self.ended[name].finish_reason


def answers_of(**config: Any) -> Iterator[Answers]:
    made = Answers(**config)
    yield made
    assert made.engine.slot_counts()["active"] == 0
    made.engine.close()


@pytest.fixture
def answers() -> Iterator[Answers]:
    yield from answers_of()


def is_person(text: str) -> bool:
    value = json.loads(text)
    return (
        list(value) == ["name", "age", "kind"]
        and len(value["name"]) <= 12
        and 0 <= value["age"] <= 120
        and value["kind"] in ("king", "queen", "fool")
    )


def test_twenty_seeds_give_twenty_values_of_the_schema(answers: Answers) -> None:
    for seed in range(20):
        answers.ask(str(seed), seed=seed, grammar=JSON, temperature=1.5)
    answers.run()
    assert {answers.reason(name) for name in answers.ended} == {"stop"}
    texts = [answers.text(str(seed)) for seed in range(20)]
    assert [text for text in texts if not is_person(text)] == []
    assert len(set(texts)) > 10


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (DATE, r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
        (LARK, r"SELECT [a-z]{1,8}(, [a-z]{1,8}){0,2} FROM [a-z]{1,8}"),
        (Grammar(kind="regex", text="to be|not to be"), "to be|not to be"),
        (Grammar(kind="gbnf", text='root ::= "x" n\nn ::= [0-9] | [0-9] n'), "x[0-9]+"),
        (Grammar(kind="regex", text="ö{3}😀"), "ööö😀"),
    ],
)
def test_every_kind_of_grammar_is_kept_to(answers: Answers, grammar: Grammar, pattern: str) -> None:
    params = ({"temperature": 0.0}, {"top_k": 5}, {"top_p": 0.2}, {"min_p": 0.5}, {"temperature": 2.0})
    for index, choice in enumerate(params):
        answers.ask(str(index), grammar=grammar, seed=index, **choice)
    answers.run()
    for index in range(len(params)):
        assert answers.reason(str(index)) == "stop", answers.text(str(index))
        assert re.fullmatch(pattern, answers.text(str(index)))


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_unconstrained_neighbours_get_the_same_bits(runs_ahead: bool) -> None:
    def neighbours(made: Answers) -> None:
        for seed in range(4):
            made.ask(f"free{seed}", f"Neighbour {seed}", seed=seed, max_tokens=40, num_logprobs=2)

    results = []
    for is_constrained in (False, True):
        made = Answers(async_scheduling=runs_ahead)
        neighbours(made)
        for seed in range(4 if is_constrained else 0):
            made.ask(f"bound{seed}", seed=seed, grammar=(JSON, DATE)[seed % 2])
        made.run().engine.close()
        results.append([(made.tokens[f"free{i}"], made.logprobs[f"free{i}"]) for i in range(4)])
    assert results[0] == results[1]


def test_a_constrained_answer_is_the_same_alone_in_company_ahead_and_preempted() -> None:
    def alone() -> list[int]:
        made = Answers(max_num_seqs=1)
        made.ask("x", seed=7, grammar=JSON)
        made.run().engine.close()
        return made.tokens["x"]

    expected = alone()
    company = Answers(async_scheduling=True)
    for index in range(6):
        company.ask(str(index), seed=index, grammar=None if index % 2 else LARK)
    company.ask("x", seed=7, grammar=JSON)
    company.run().engine.close()
    assert company.tokens["x"] == expected
    for state_cache_bytes in (0, 1 << 20):  # computed again; moved to host memory and back
        made = Answers(max_num_seqs=1, scheduling_policy="priority", state_cache_bytes=state_cache_bytes)
        made.ask("x", seed=7, grammar=JSON, priority=5)
        for index in range(3):
            while len(made.tokens.get("x", [])) < 3 + 4 * index:
                made.step()
            made.ask(f"urgent{index}", max_tokens=3, grammar=DATE)
        made.run()
        assert made.engine.stats().preemptions == 3
        made.engine.close()
        assert made.tokens["x"] == expected


def test_rows_without_a_grammar_run_no_mask(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(token_masks, "mask_tokens", lambda *args: calls.append("edited"))
    monkeypatch.setattr("mambad.engine.logit_edits.mask_tokens", token_masks.mask_tokens)
    answers.ask("free", max_tokens=5, ignore_eos=True)
    answers.run()
    assert calls == []


def test_log_probabilities_are_the_model_s_own(answers: Answers) -> None:
    answers.ask("bound", grammar=DATE, num_logprobs=1, temperature=0.0)
    answers.run()
    entries = answers.logprobs["bound"]
    assert len(entries) == len(answers.tokens["bound"])
    assert any(entry.token_id != entry.top[0][0] for entry in entries), "the model would have said else"
    assert all(-40 < entry.logprob < 0 for entry in entries)


def test_fields_that_leave_no_token_end_their_request_alone(answers: Answers) -> None:
    letters = tuple(sorted({TOKENIZER.token_to_id(char) for char in "abc"}))
    digits = tuple(sorted({TOKENIZER.token_to_id(char) for char in "0123456789"}))
    answers.ask("dead", grammar=DATE, allowed_token_ids=letters)
    answers.ask("dead later", grammar=DATE, allowed_token_ids=digits)
    answers.ask("satisfied", grammar=Grammar(kind="regex", text="[0-9]{3}[a-z]*"), allowed_token_ids=digits)
    answers.ask("free", max_tokens=10, ignore_eos=True)
    answers.run()
    for name in ("dead", "dead later"):
        assert (answers.reason(name), answers.ended[name].error_code) == ("error", "grammar_dead_end")
    assert len(answers.text("dead later")) == 4
    assert answers.reason("satisfied") == "stop"
    assert re.fullmatch("[0-9]{3}", answers.text("satisfied"))
    assert answers.reason("free") == "length"


def test_bias_and_min_tokens_choose_among_what_the_grammar_allows(answers: Answers) -> None:
    bias = ((TOKENIZER.token_to_id("7"), 100.0), (TOKENIZER.token_to_id("x"), 100.0))
    answers.ask("biased", grammar=Grammar(kind="regex", text="[0-9]{5}"), logit_bias=bias)
    word = Grammar(kind="regex", text="[0-9]{1,9}")
    answers.ask("long", grammar=word, min_tokens=4, logit_bias=((0, 100.0),))
    answers.ask("beyond", grammar=word, min_tokens=30)
    answers.ask("endless", grammar=word, ignore_eos=True)
    answers.run()
    assert set(answers.text("biased")) == {"7"}
    assert len(answers.tokens["long"]) == 5, "four tokens, then the end that is preferred"
    for name in ("beyond", "endless"):
        assert answers.reason(name) == "stop"
        assert len(answers.text(name)) == 9


def test_the_text_may_be_cut_by_max_tokens_and_stop_ids(answers: Answers) -> None:
    answers.ask("short", grammar=JSON, max_tokens=4)
    dash = TOKENIZER.token_to_id("-")
    answers.ask("stopped", grammar=DATE, stop_token_ids=(dash,))
    answers.run()
    assert answers.reason("short") == "length"
    assert (answers.reason("stopped"), answers.ended["stopped"].stop_token_id) == ("stop", dash)
    assert re.fullmatch("[0-9]{4}-", answers.text("stopped"))


def test_a_grammar_that_the_engine_can_not_compile_ends_its_request_alone(answers: Answers) -> None:
    answers.ask("broken", grammar=Grammar(kind="regex", text="("))
    answers.ask("aborted", grammar=Grammar(kind="regex", text="[a-z]{200}"))
    answers.ask("fine", grammar=DATE)
    answers.ask("free", max_tokens=10, ignore_eos=True)
    for _ in range(10):
        answers.step()
    answers.engine.abort("aborted")
    answers.run()
    assert answers.ended["broken"].error_code == "invalid_grammar"
    assert [answers.reason(name) for name in ("fine", "free")] == ["stop", "length"]
    assert "aborted" not in answers.ended or answers.reason("aborted") == "disconnect"


# ---- over HTTP ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served() -> Iterator[ServedProcess]:
    with serve(DEMO, "--threads", "1", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "64MiB") as process:
        yield process


@pytest.fixture
def client(served: ServedProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made
    wait_until_all_slots_are_free(served.url)


def complete(client: openai.OpenAI, **body: Any) -> Any:
    known = {"model": "demo", "prompt": "A thing: ", "max_tokens": 300}
    return client.completions.create(**known, extra_body=body)


def test_a_schema_over_http_streamed_and_whole(client: openai.OpenAI) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    whole = complete(client, response_format=wanted, n=4, seed=3)
    assert all(is_person(choice.text) for choice in whole.choices)
    assert {choice.finish_reason for choice in whole.choices} == {"stop"}
    texts = [""] * 4
    for chunk in client.completions.create(
        model="demo",
        prompt="A thing: ",
        max_tokens=300,
        n=4,
        seed=3,
        stream=True,
        extra_body={"response_format": wanted},
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"regex": r"\d{3}-\d{2}"}, r"[0-9]{3}-[0-9]{2}"),
        ({"choice": ["to be", 'or "not"\nto be', "😀"]}, 'to be|or "not"\nto be|😀'),
        ({"grammar": 'start: "x" /[0-9]{1,5}/'}, "x[0-9]{1,5}"),
        ({"grammar": 'root ::= "x" [0-9]'}, "x[0-9]"),
        ({"json": PERSON, "disable_any_whitespace": True}, r'\{"name":".*","age":\d+,"kind":"\w+"\}'),
    ],
)
def test_structured_outputs_over_http(client: openai.OpenAI, outputs: Any, pattern: str) -> None:
    answer = complete(client, structured_outputs=outputs).choices[0]
    assert answer.finish_reason == "stop"
    assert re.fullmatch(pattern, answer.text), answer.text


def test_json_mode_over_http_gives_the_beginning_of_an_object_at_least(client: openai.OpenAI) -> None:
    answer = complete(client, response_format={"type": "json_object"}, seed=1).choices[0]
    assert answer.text.startswith("{")
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.text), dict)


def test_hostile_grammars_cost_their_sender_a_400_and_nobody_else_anything(
    served: ServedProcess, client: openai.OpenAI
) -> None:
    before = complete(client, seed=5, temperature=1).choices[0].text
    patterns = [{"type": "string", "pattern": f"[ab]*a[ab]{{{size}}}"} for size in range(30)]
    deep: Any = {"type": "string"}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    for outputs in (
        {"json": {"allOf": patterns}},
        {"json": deep},
        {"json": {"$ref": "#"}},
        {"regex": "((((" * 2000},
        {"regex": "((a{1,100}){1,100}){1,100}"},
        {"grammar": 'start: x{1000}\nx: y{1000}\ny: z{1000}\nz: "a"'},
        {"choice": ["x" * 70] * 1000},
    ):
        body = {"prompt": "x", "structured_outputs": outputs, "stream": True}
        answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=30)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"].startswith("structured_outputs.")
        assert len(error["message"]) < 700
    assert complete(client, seed=5, temperature=1).choices[0].text == before
    assert complete(client, structured_outputs={"choice": ["a"]}).choices[0].text == "a"
    assert metric(httpx.get(f"{served.url}/metrics").text, "mambad_state_slots_leaked_total") == 0
