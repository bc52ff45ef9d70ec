"""Our logits against Transformers', for every family, both kernels, and every way to cut a prompt.

The oracle is Transformers' one forward pass over the whole prompt. Within our own modes, what is promised
bit for bit is compared bit for bit.
"""

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from kernels_levels import BFLOAT16_LEVELS
from torch import Tensor
from toy_driver import Driver, Span, whole
from toy_models import NUM_TOKENS, ToyModel, toy_model, toy_names

from mambad.engine.loader import load_model
from mambad.engine.models.decoder import Decoder
from mambad.kernels.cpu.ops import CpuOps, load_cpu_ops
from mambad.kernels.ops import Ops
from mambad.kernels.reference.ops import ReferenceOps

TOLERANCE = 2e-5
"""Largest difference of a logit, relative to the largest logit."""

ROUNDED_TOLERANCE = 7 * 2.0**-8
"""The same where linear layers round their inputs to bfloat16, each by up to 2^-9: the toy has two in each of
its three layers and a head, and the gates and norms after them may double what comes in."""

CloseCheck = Callable[[Tensor, Tensor], None]

MAX_CHUNK = 64
SHORT = 20
"""Tokens of a prompt that is split at every offset."""


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@functools.cache
def ops_named(name: str) -> Ops | str:
    return ReferenceOps("tests") if name == "reference" else load_cpu_ops(1)


@functools.cache
def decoder_for(toy_name: str, ops_name: str) -> Decoder:
    ops = ops_named(ops_name)
    assert not isinstance(ops, str)
    return load_model(toy_model(toy_name).folder, ops=ops)


@pytest.fixture(params=toy_names(), scope="module")
def toy_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def toy(toy_name: str) -> ToyModel:
    return toy_model(toy_name)


@pytest.fixture(params=["reference", "cpu"], scope="module")
def decoder(request: pytest.FixtureRequest, toy_name: str) -> Decoder:
    ops = ops_named(request.param)
    if isinstance(ops, str):
        pytest.skip(ops)
    return decoder_for(toy_name, request.param)


@pytest.fixture
def assert_close(toy_name: str, decoder: Decoder) -> CloseCheck:
    ops = decoder.ops
    rounds = toy_name == "mamba2-bfloat16" and isinstance(ops, CpuOps) and ops.level in BFLOAT16_LEVELS
    tolerance = ROUNDED_TOLERANCE if rounds else TOLERANCE

    def check(ours: Tensor, theirs: Tensor) -> None:
        assert ours.shape == theirs.shape
        difference = (ours - theirs).abs().max() / theirs.abs().max()
        assert difference <= tolerance, f"off by {difference:.1e}"

    return check


def test_whole_prompts_equal_transformers(decoder: Decoder, toy: ToyModel, assert_close: CloseCheck) -> None:
    for tokens, logits in zip(toy.token_ids, toy.logits, strict=True):
        assert_close(Driver(decoder).run_in_pieces(tokens, [whole(NUM_TOKENS)]), logits)


def test_token_by_token_equals_transformers(
    decoder: Decoder, toy: ToyModel, assert_close: CloseCheck
) -> None:
    assert_close(Driver(decoder).run_token_by_token(toy.token_ids[0, :70]), toy.logits[0, :70])


def test_split_at_every_offset_equals_transformers(
    decoder: Decoder, toy: ToyModel, assert_close: CloseCheck
) -> None:
    tokens, logits = toy.token_ids[0, :SHORT], toy.logits[0, :SHORT]
    for offset in range(1, SHORT):
        in_one_call = Driver(decoder).run_in_pieces(tokens, [[offset, SHORT - offset]])
        assert_close(in_one_call, logits)
        in_two_calls = Driver(decoder).run_in_pieces(tokens, [[offset], [SHORT - offset]])
        assert torch.equal(in_one_call, in_two_calls)


def random_calls(seed: int) -> list[list[int]]:
    """Return chunk lengths that add up to NUM_TOKENS, spread over calls; both short and long ones occur."""
    rng = random.Random(seed)
    calls: list[list[int]] = []
    left = NUM_TOKENS
    while left:
        length = min(left, rng.choice([1, 2, 3, 4, 5, 17, 31, 63, 64]))
        if calls and rng.random() < 0.5:
            calls[-1].append(length)
        else:
            calls.append([length])
        left -= length
    return calls


@pytest.mark.parametrize("seed", range(3))
def test_random_chunks_in_random_calls_equal_transformers(
    decoder: Decoder, toy: ToyModel, assert_close: CloseCheck, seed: int
) -> None:
    calls = random_calls(seed)
    assert_close(Driver(decoder).run_in_pieces(toy.token_ids[1], calls), toy.logits[1])


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 63, 64, 65, 127, 128, 129])
def test_decode_continues_a_prefill_of_any_length(
    decoder: Decoder, toy: ToyModel, assert_close: CloseCheck, num_tokens: int
) -> None:
    driver = Driver(decoder)
    tokens = toy.token_ids[0]
    prefilled = driver.run_in_pieces(tokens[:num_tokens], [whole(num_tokens)])
    decoded = driver.run_token_by_token(tokens[: num_tokens + 1], start=num_tokens)
    assert_close(torch.cat([prefilled, decoded]), toy.logits[0, : num_tokens + 1])


def test_mixed_steps_equal_transformers_and_the_same_rows_alone(
    decoder: Decoder, toy: ToyModel, assert_close: CloseCheck
) -> None:
    first, second = toy.token_ids
    driver = Driver(decoder)
    driver.prefill(Span(1, first, 0, [37]))
    packed = driver.prefill(
        Span(2, second, 0, [64, 5]),
        Span(1, first, 37, [1, 12]),
        Span(4, second, 0, [1]),
        Span(3, first, 0, [3]),
    )
    decoded = driver.decode((3, int(first[3]), 3), (1, int(first[50]), 50), (4, int(second[1]), 1))
    assert_close(packed[:69], toy.logits[1, :69])
    assert_close(packed[69:82], toy.logits[0, 37:50])
    assert_close(decoded, torch.stack([toy.logits[0, 3], toy.logits[0, 50], toy.logits[1, 1]]))

    alone = Driver(decoder)
    assert torch.equal(alone.run_in_pieces(first, [[37], [1, 12]], slot=2)[37:], packed[69:82])
    assert torch.equal(alone.decode((2, int(first[50]), 50))[0], decoded[1])
    assert alone.pools.states.checksum(2) == driver.pools.states.checksum(1)


def test_a_slot_used_again_equals_a_fresh_one(decoder: Decoder, toy: ToyModel) -> None:
    first, second = toy.token_ids[:, :40]
    driver = Driver(decoder)
    driver.run_in_pieces(second, [[40]])
    assert torch.equal(driver.run_in_pieces(first, [[40]]), Driver(decoder).run_in_pieces(first, [[40]]))


class CountingOps:
    """Counts the op calls of another implementation."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self.num_calls = 0

    def __getattr__(self, name: str) -> Any:
        op = getattr(self._ops, name)

        def count(*arguments: Any) -> Any:
            self.num_calls += 1
            return op(*arguments)

        return count


def test_the_number_of_op_calls_does_not_depend_on_the_number_of_rows(toy_name: str, toy: ToyModel) -> None:
    counting = CountingOps(ReferenceOps("tests"))
    driver = Driver(load_model(toy.folder, ops=counting), num_slots=32)
    driver.prefill(*(Span(slot, toy.token_ids[0], 0, [1]) for slot in range(1, 33)))
    counts = []
    for num_rows in (1, 32):
        before = counting.num_calls
        driver.decode(*((slot, 5, 1) for slot in range(1, num_rows + 1)))
        counts.append(counting.num_calls - before)
    assert counts[0] == counts[1] > 0
