"""The sampler: distribution, filters, penalties, masks, extremes, and independence of rows."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mambad.engine.batch import SampleSpec
from mambad.engine.random_draws import uniform_draws
from mambad.engine.sampler import SampledRow, Sampler
from mambad.engine.sampling_params import SamplingParams
from mambad.kernels.cpu.ops import load_cpu_ops
from mambad.kernels.reference.ops import ReferenceOps

EOS = 2


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def spec(position: int = 10, tokens: Sequence[int] = (), num_prompt: int = 0, **params: Any) -> SampleSpec:
    return SampleSpec(
        SamplingParams(**params),
        position=position,
        num_generated=len(tokens) - num_prompt,
        token_ids=tokens,
        num_prompt_tokens=num_prompt,
    )


def random_logits(num_rows: int, vocab_size: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.fixture(autouse=True, params=["reference", "cpu"])
def sampler(request: pytest.FixtureRequest) -> Sampler:
    """Make every test draw with each implementation; `sample` uses the newest."""
    loaded = ReferenceOps("tests") if request.param == "reference" else load_cpu_ops(2)
    if isinstance(loaded, str):
        pytest.skip(loaded)
    SAMPLERS.append(Sampler([EOS], loaded))
    return SAMPLERS[-1]


SAMPLERS: list[Sampler] = []


def sample(logits: Tensor, *specs: SampleSpec) -> list[int]:
    return [row.token_id for row in SAMPLERS[-1].sample(logits, specs)]


def draw_many(logits: Tensor, num_draws: int, **params: Any) -> Counter[int]:
    """Draw from one row (V,) at many positions."""
    specs = [spec(position=position, **params) for position in range(num_draws)]
    return Counter(sample(logits.expand(num_draws, -1).contiguous(), *specs))


# ---- greedy ------------------------------------------------------------------------------------------


def test_greedy_takes_the_lowest_of_equal_maxima() -> None:
    logits = torch.zeros(3, 97)
    logits[0, [90, 40, 60]] = 5.0
    logits[1, 96] = 0.5
    assert sample(logits, *[spec(temperature=0.0)] * 3) == [40, 96, 0]


def test_greedy_does_not_look_at_seed_or_filters() -> None:
    logits = random_logits(3, 97)
    greedy = sample(logits, *[spec(temperature=0.0)] * 3)
    assert greedy == logits.argmax(-1).tolist()
    assert greedy == sample(logits, *[spec(temperature=0.0, seed=s, top_k=3, top_p=0.1) for s in (1, 2, 3)])


# ---- distribution ------------------------------------------------------------------------------------

SMALL = torch.tensor([2.0, 0.5, 1.0, -0.5, 1.0, 0.0, 1.9, -1.0])


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({}, range(8)),
        ({"temperature": 0.5}, range(8)),
        ({"temperature": 2.0}, range(8)),
        ({"top_k": 3}, [0, 6, 2]),
        ({"top_k": 8}, range(8)),
        ({"top_p": 0.7}, [0, 6, 2]),
        ({"min_p": 0.3}, [0, 6, 2, 4]),
        ({"min_p": 0.3, "temperature": 2.0}, [0, 6, 2, 4, 1, 5]),
        ({"top_k": 4, "top_p": 0.8, "temperature": 1.5}, [0, 6, 2]),
        ({"top_k": 5, "min_p": 0.5}, [0, 6]),
        ({"top_p": 0.9, "min_p": 0.3}, [0, 6, 2, 4]),
    ],
)
def test_draws_follow_the_distribution_of_the_kept_tokens(
    params: dict[str, Any], kept: Sequence[int]
) -> None:
    num_draws = 6000
    counts = draw_many(SMALL, num_draws, seed=7, **params)
    weights = torch.zeros(8, dtype=torch.float64)
    weights[list(kept)] = torch.exp(SMALL.double() / params.get("temperature", 1.0))[list(kept)]
    expected = weights / weights.sum() * num_draws
    assert set(counts) == set(kept)
    statistic = sum((counts[i] - float(expected[i])) ** 2 / float(expected[i]) for i in kept)
    # The 99.9 % points of chi-square for 1 to 7 degrees of freedom.
    assert statistic < [10.8, 13.8, 16.3, 18.5, 20.5, 22.5, 24.3][len(kept) - 2]


def test_draw_inverts_the_sums_in_the_order_of_ids_or_of_rank() -> None:
    logits = random_logits(200, 97)
    plain = [spec(position=p, seed=3) for p in range(200)]
    ranked = [spec(position=p, seed=3, top_p=0.95, temperature=0.8, top_k=60) for p in range(200)]
    uniforms = uniform_draws(plain)
    for row, token in enumerate(sample(logits, *plain)):
        assert token == invert(logits[row].double(), list(range(97)), uniforms[row])
    for row, token in enumerate(sample(logits, *ranked)):
        scaled = logits[row].double() / 0.8
        order = np.lexsort((np.arange(97), -logits[row].numpy())).tolist()[:60]
        assert token == invert(scaled, smallest_set(scaled, order, 0.95), uniforms[row])


def smallest_set(logits: Tensor, order: list[int], top_p: float) -> list[int]:
    weights = torch.exp(logits[order] - logits.max())
    mass = 0.0
    for num_kept, weight in enumerate((weights / weights.sum()).tolist(), 1):
        mass += weight
        if mass >= top_p:
            return order[:num_kept]
    return order


def invert(logits: Tensor, order: list[int], uniform: float) -> int:
    weights = torch.exp(logits[order] - logits.max()).tolist()
    target, passed = uniform * sum(weights), 0.0
    for token, weight in zip(order, weights, strict=True):
        passed += weight
        if passed > target:
            return token
    raise AssertionError("the target lies below the sum")


LAST = 1.0 - 2.0**-53
"""The largest draw."""


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 3), (0.25, 3), (0.5, 6), (0.75, 6), (LAST, 6)])
@pytest.mark.parametrize("params", [{}, {"min_p": 0.1}, {"top_k": 5}, {"top_p": 0.999}])
def test_draw_at_the_boundary_of_two_tokens_is_the_second(
    uniform: float, token: int, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mambad.engine.sampler.uniform_draws", lambda specs: np.full(len(specs), uniform))
    logits = torch.full((1, 9), -1000.0)
    logits[0, [3, 6]] = 2.0
    assert sample(logits, spec(**params)) == [token]


@pytest.mark.parametrize("params", [{}, {"top_p": 0.999}, {"top_k": 1000}])
def test_largest_draw_finds_a_token_that_can_be_drawn(
    params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mambad.engine.sampler.uniform_draws", lambda specs: np.full(len(specs), LAST))
    logits = random_logits(40, 1000)
    logits[:, -3:] = -1000.0
    assert max(sample(logits, *[spec(**params)] * 40)) < 997


def test_absent_filters_equal_filters_that_keep_everything() -> None:
    logits = random_logits(64, 97)
    plain = [spec(position=p) for p in range(64)]
    assert sample(logits, *plain) == sample(logits, *[spec(position=p, top_k=97) for p in range(64)])
    assert sample(logits, *plain) == sample(logits, *[spec(position=p, top_k=500) for p in range(64)])


def test_choices_and_prompts_with_one_seed_draw_differently() -> None:
    logits = torch.zeros(1, 1000)
    keys: list[dict[str, Any]] = [
        {"choice_index": 1},
        {"prompt_index": 1},
        {"seed": 1},
        {"position": 11},
        {},
    ]
    assert len({sample(logits, spec(**key))[0] for key in keys}) == len(keys)


# ---- filters at their boundaries ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.0, 1), (0.25, 1), (0.2500001, 2), (0.5, 2), (0.75, 3), (0.7500001, 4), (0.99999, 4), (1.0, 4)],
)
def test_top_p_keeps_the_smallest_set_that_reaches_the_mass(top_p: float, kept: int) -> None:
    # Four tokens of probability 1/4 exactly, ties to the lower id; the rest has probability 0.
    logits = torch.full((10,), -1000.0)
    logits[[1, 4, 5, 8]] = 3.0
    assert set(draw_many(logits, 300, top_p=top_p)) == set([1, 4, 5, 8][:kept])


def test_top_p_is_a_share_of_what_top_k_leaves() -> None:
    logits = torch.zeros(100)
    assert set(draw_many(logits, 300, top_k=4, top_p=0.5)) == {0, 1}


def test_top_p_reaches_into_a_flat_tail_of_unlikely_tokens() -> None:
    # 0.9, then 199 tokens that share 0.1: the mass of 0.95 is reached with the hundredth of these.
    logits = torch.log(torch.tensor([0.9] + [0.1 / 199] * 199))
    drawn = draw_many(logits, 4000, top_p=0.95)
    assert 95 <= max(drawn) <= 100
    assert len(drawn) > 70


def test_top_k_breaks_ties_by_id() -> None:
    logits = torch.zeros(50)
    logits[[7, 30, 31, 49]] = 1.0
    assert set(draw_many(logits, 300, top_k=3)) == {7, 30, 31}
    assert set(draw_many(logits, 300, top_k=1)) == {7}


def test_min_p_of_one_keeps_all_maxima() -> None:
    logits = torch.zeros(50)
    logits[[7, 30]] = 1.0
    assert set(draw_many(logits, 100, min_p=1.0)) == {7, 30}
    assert set(draw_many(logits, 100, min_p=1.0, top_k=10)) == {7, 30}


# ---- extremes ----------------------------------------------------------------------------------------


def test_logits_are_not_changed() -> None:
    logits = random_logits(4, 97)
    before = logits.clone()
    edited: dict[str, Any] = {"logit_bias": ((1, 5.0),), "min_tokens": 3, "presence_penalty": 1.0}
    for temperatures in ((0.0,) * 4, (1.0,) * 4, (0.0, 1.0, 0.0, 1.0)):
        sample(logits, *[spec(tokens=[1], temperature=t, min_p=0.1, **edited) for t in temperatures])
        assert torch.equal(logits, before)


EXTREMES: dict[str, list[Any]] = {
    "temperature": [0.0, 1e-4, 2.0],
    "top_k": [0, 1, 10**6],
    "top_p": [0.0, 1e-9, 1.0],
    "min_p": [0.0, 1.0],
    "repetition_penalty": [1e-3, 1.0, 1e3],
    "presence_penalty": [-2.0, 2.0],
    "logit_bias": [(), ((0, 100.0), (1, -100.0))],
}


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4, 3e38])
def test_extreme_parameters_give_finite_results(scale: float) -> None:
    combinations = [dict(zip(EXTREMES, c, strict=True)) for c in itertools.product(*EXTREMES.values())]
    base = torch.tensor([1.0, -1.0, 0.5, -0.5, 0.0, 1.0, -1.0])
    logits = (base * scale).expand(len(combinations), -1).contiguous()
    specs = [spec(tokens=[0, 1, 2, 2], num_prompt=1, num_logprobs=7, **params) for params in combinations]
    for row in SAMPLERS[-1].sample(logits, specs):
        assert row.is_finite
        assert 0 <= row.token_id < 7
        assert row.logprobs is not None
        assert row.logprobs.logprob is not None
        assert not np.isnan([row.logprobs.logprob, *(logprob for _, logprob in row.logprobs.top)]).any()


def test_tiny_temperature_is_greedy_in_effect() -> None:
    logits = random_logits(50, 1000)
    assert (
        sample(logits, *[spec(position=p, temperature=1e-4) for p in range(50)]) == logits.argmax(-1).tolist()
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "params",
    [{"temperature": 0.0}, {}, {"min_p": 0.1}, {"top_k": 3}, {"top_p": 0.5}, {"repetition_penalty": 2.0}],
)
def test_row_that_is_not_finite_is_marked_and_its_neighbours_do_not_change(
    bad: float, params: dict[str, Any]
) -> None:
    logits = random_logits(4, 97)
    specs = [spec(position=p, tokens=[60], num_logprobs=2, **params) for p in range(4)]
    clean = SAMPLERS[-1].sample(logits, specs)
    logits[1, 60] = bad
    rows = SAMPLERS[-1].sample(logits, specs)
    assert rows[1] == SampledRow(token_id=0, logprobs=None, is_finite=False)
    assert rows[:1] + rows[2:] == clean[:1] + clean[2:]


# ---- log-probabilities -------------------------------------------------------------------------------


def test_logprobs_are_of_the_unmodified_logits() -> None:
    logits = random_logits(3, 97)
    expected = torch.log_softmax(logits, dim=-1)
    changes: dict[str, Any] = {"temperature": 0.3, "top_k": 5, "logit_bias": ((4, 50.0),), "min_tokens": 99}
    specs = [
        spec(num_logprobs=-1, **changes),
        spec(num_logprobs=0, **changes),
        spec(num_logprobs=4, **changes),
    ]
    first, second, third = SAMPLERS[-1].sample(logits, specs)
    assert first.logprobs is None
    assert second.logprobs is not None
    assert (second.token_id, second.logprobs.token_id, second.logprobs.top) == (4, 4, ())
    assert second.logprobs.logprob == expected[1, 4].item()
    assert third.logprobs is not None
    best = expected[2].topk(4)
    assert third.logprobs.top == tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))


# ---- rows do not depend on each other ----------------------------------------------------------------

VARIED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 40},
    {"temperature": 1.3, "min_p": 0.05},
    {"top_k": 20, "top_p": 0.8, "min_p": 0.01, "frequency_penalty": 0.5},
    {"repetition_penalty": 1.2, "temperature": 0.0},
    {"logit_bias": ((3, 4.0), (4, -4.0)), "min_tokens": 50, "presence_penalty": 0.3},
]


def varied_spec(row: int) -> SampleSpec:
    tokens = [(row * 7 + i * i) % 90 for i in range(20)]
    return spec(
        position=100 + row, tokens=tokens, num_prompt=12, seed=row, num_logprobs=row % 4, **VARIED[row % 8]
    )


@pytest.mark.parametrize("vocab_size", [97, 1000, 50277])
def test_row_gives_the_same_alone_and_among_others_in_any_order(vocab_size: int) -> None:
    logits = random_logits(33, vocab_size)
    specs = [varied_spec(row) for row in range(33)]
    sampler = SAMPLERS[-1]
    alone = [sampler.sample(logits[row : row + 1].clone(), [specs[row]])[0] for row in range(33)]
    rng = np.random.default_rng(0)
    for num_rows in (33, 33, 20, 8, 3):
        rows = rng.permutation(33)[:num_rows].tolist()
        together = sampler.sample(logits[rows], [specs[row] for row in rows])
        assert together == [alone[row] for row in rows]


@pytest.mark.parametrize("vocab_size", [97, 50277])
def test_sums_behind_the_draws_have_the_same_bytes_alone_and_among_others(vocab_size: int) -> None:
    """Equal tokens alone would hide a difference in the last bit: compare what they are found in."""
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        logits = random_logits(33, vocab_size, seed=1)
        sums = torch.softmax(logits, dim=-1).cumsum(dim=-1, dtype=torch.float64)
        for row in range(33):
            one = torch.softmax(logits[row : row + 1].clone(), dim=-1).cumsum(dim=-1, dtype=torch.float64)
            assert one.numpy().tobytes() == sums[row].numpy().tobytes()
