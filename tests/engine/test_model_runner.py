"""What a step gives: who gets logits, drawn tokens, prompt log-probabilities, marks of NaN."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import Tensor
from toy_runner import VOCABULARY, Client, Rig, toy_decoder, toy_rig

from mambad.engine.batch import TOKEN_OF_LAUNCHED_STEP, Batch, RowResult
from mambad.engine.model_inputs import DecodeInputs, Pools, PrefillInputs
from mambad.engine.models.decoder import Decoder
from mambad.engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
SCORED = SamplingParams(temperature=0.0, num_logprobs=1, num_prompt_logprobs=3)


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


class Recorder:
    """The toy decoder, with a record of what it was asked for and a way to spoil its logits."""

    def __init__(self) -> None:
        self.spec = toy_decoder().spec
        self.logits_of: list[Tensor] = []
        self.decoded: list[DecodeInputs] = []
        self.contexts: set[tuple[str, bool]] = set()
        self.spoiled: tuple[int, int] | None = None

    def prefill(self, inputs: PrefillInputs, pools: Pools) -> Tensor:
        self.contexts.add((threading.current_thread().name, torch.is_inference_mode_enabled()))
        return toy_decoder().prefill(inputs, pools)

    def decode(self, inputs: DecodeInputs, pools: Pools) -> Tensor:
        self.decoded.append(inputs)
        return toy_decoder().decode(inputs, pools)

    def logits(self, hidden: Tensor) -> Tensor:
        logits = toy_decoder().logits(hidden)
        self.logits_of.append(logits.clone())
        if self.spoiled is not None and len(self.logits_of) - 1 == self.spoiled[0]:
            logits[self.spoiled[1], 7] = float("nan")
        return logits


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def rig(recorder: Recorder) -> Iterator[Rig]:
    with toy_rig(decoder=cast(Decoder, recorder)) as rig:
        yield rig


def prompt(length: int, first: int = 1) -> list[int]:
    return [(first + i * i) % VOCABULARY for i in range(length)]


def prefill(rig: Rig, step_id: int, *clients: Client, end: int | None = None) -> tuple[RowResult, ...]:
    spans = tuple(client.span(end) for client in clients)
    updates = tuple(client.table_update for client in clients)
    return rig.runner.launch(Batch(step_id, spans, table_updates=updates)).result().rows


def test_step_runs_on_the_worker_thread_without_gradients(rig: Rig, recorder: Recorder) -> None:
    prefill(rig, 1, Client(1, prompt(5), GREEDY))
    assert recorder.contexts == {("mambad-runner", True)}


def test_only_rows_that_want_a_token_get_logits(rig: Rig, recorder: Recorder) -> None:
    long, short = Client(1, prompt(100), GREEDY), Client(2, prompt(5), GREEDY)
    (unfinished,) = prefill(rig, 1, long, end=64)
    assert unfinished == RowResult(request_key=1, token_id=None)
    assert recorder.logits_of == []
    rows = prefill(rig, 2, long, short)
    assert [(row.request_key, row.token_id is None) for row in rows] == [(1, False), (2, False)]
    assert [logits.shape for logits in recorder.logits_of] == [(2, VOCABULARY)]
    replayed = replace(long.row(), sample=None)
    rows = rig.runner.launch(Batch(3, decodes=(replayed, short.row()))).result().rows
    assert rows[0] == RowResult(request_key=1, token_id=None)
    assert rows[1].token_id is not None
    assert [logits.shape[0] for logits in recorder.logits_of] == [2, 1]


def test_greedy_tokens_are_those_of_each_row_and_prefill_comes_first(rig: Rig, recorder: Recorder) -> None:
    first, second, third = (Client(slot, prompt(5, slot), GREEDY) for slot in (1, 2, 3))
    for client, row in zip((second, first), prefill(rig, 1, second, first), strict=True):
        client.take(row)
    assert recorder.logits_of[0].argmax(-1).tolist() == [second.output[0], first.output[0]]
    batch = Batch(2, (third.span(),), (first.row(), second.row()), (third.table_update,))
    rows = rig.runner.launch(batch).result().rows
    assert [row.request_key for row in rows] == [3, 1, 2]
    assert recorder.logits_of[1].argmax(-1).tolist() == [row.token_id for row in rows]


def test_token_of_the_launched_step_is_that_of_the_same_slot(rig: Rig, recorder: Recorder) -> None:
    clients = [Client(slot, prompt(5, slot), GREEDY) for slot in (1, 2, 3)]
    rows = prefill(rig, 1, *clients)
    launched = [client.row() for client in (clients[2], clients[0])]
    assert {row.token_id for row in launched} == {TOKEN_OF_LAUNCHED_STEP}
    clients[1].take(rows[1])
    handle = rig.runner.launch(Batch(2, decodes=(launched[0], clients[1].row(), launched[1])))
    handle.wait()
    expected = [rows[2].token_id, rows[1].token_id, rows[0].token_id, 0]
    assert recorder.decoded[0].token_ids.tolist() == expected
    assert recorder.decoded[0].slots.tolist() == [3, 2, 1, 0]
    assert len({row.token_id for row in rows}) > 1


@pytest.mark.parametrize("ends", [(100,), (64, 100)])
def test_prompt_logprobs_are_those_of_the_logits_before_each_token(
    rig: Rig, recorder: Recorder, ends: tuple[int, ...]
) -> None:
    client = Client(1, prompt(100), SCORED)
    for step_id, end in enumerate(ends, 1):
        client.take(prefill(rig, step_id, client, end=end)[0])
    *pieces, last = recorder.logits_of
    assert max(piece.shape[0] for piece in pieces) <= 64
    logits = torch.cat([*pieces, last])
    assert logits.shape[0] == 100
    expected = torch.log_softmax(logits, dim=-1)
    # Entry i is for position i + 1; the prompt's last row predicts the drawn token.
    entries = [*client.prompt_logprobs, client.logprobs[0]]
    tokens = [*client.prompt[1:], client.output[0]]
    assert len(entries) == 100
    for row, (entry, token_id) in enumerate(zip(entries, tokens, strict=True)):
        assert entry is not None
        assert (entry.token_id, entry.logprob) == (token_id, expected[row, token_id].item())
    for row, entry in enumerate(client.prompt_logprobs):
        best = expected[row].topk(3)
        assert entry.top == tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def test_span_within_a_prompt_has_one_entry_for_each_token_and_the_last_one_fewer(rig: Rig) -> None:
    client = Client(1, prompt(130), SCORED)
    numbers = [
        len(prefill(rig, step, client, end=end)[0].prompt_logprobs) for step, end in ((1, 64), (2, 130))
    ]
    assert numbers == [64, 65]
    lone = Client(2, prompt(1), SCORED)
    (row,) = prefill(rig, 3, lone)
    assert row.prompt_logprobs == ()
    assert row.logprobs is not None


def test_drawn_token_is_the_one_that_scoring_the_prompt_with_one_token_more_predicts(rig: Rig) -> None:
    short, longer, other = (Client(slot, prompt(n), SCORED) for slot, n in ((1, 5), (2, 6), (3, 70)))
    rows = prefill(rig, 1, short, other, longer)
    assert rows[2].prompt_logprobs[-1].top[0][0] == rows[0].token_id
    assert rows[1].prompt_logprobs[4].top[0][0] == rows[0].token_id


def test_scores_of_one_span_do_not_depend_on_the_others(rig: Rig) -> None:
    clients = [Client(slot, prompt(length, slot), SCORED) for slot, length in ((1, 33), (2, 70), (3, 5))]
    together = prefill(rig, 1, *clients)
    fresh = [Client(client.slot, client.prompt, SCORED) for client in clients]
    apart = tuple(prefill(rig, step_id, client)[0] for step_id, client in enumerate(fresh, 2))
    assert together == apart


def test_row_that_is_not_finite_is_marked_and_the_others_are_not(rig: Rig, recorder: Recorder) -> None:
    recorder.spoiled = (0, 1)
    first, second = Client(1, prompt(5), GREEDY), Client(2, prompt(5, 2), GREEDY)
    rows = prefill(rig, 1, first, second)
    assert [row.is_finite for row in rows] == [True, False]
    # A step that was launched ahead still finds an id that exists.
    ahead = rig.runner.launch(Batch(2, decodes=(second.row(),)))
    assert ahead.result().rows[0].is_finite
    assert 0 <= int(recorder.decoded[0].token_ids[0]) < VOCABULARY


def test_prompt_row_that_is_not_finite_marks_its_request(rig: Rig, recorder: Recorder) -> None:
    recorder.spoiled = (1, 2)
    (row,) = prefill(rig, 1, Client(1, prompt(100), SCORED))
    assert not row.is_finite
    assert row.prompt_logprobs == ()


def test_span_without_a_draw_still_reports_rows_that_are_not_finite(rig: Rig, recorder: Recorder) -> None:
    recorder.spoiled = (0, 63)
    (row,) = prefill(rig, 1, Client(1, prompt(100), SCORED), end=64)
    assert (row.token_id, row.is_finite) == (None, False)
