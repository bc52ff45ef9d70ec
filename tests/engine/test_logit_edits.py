"""Penalties, logit bias and the min_tokens mask: right for every id, and seen by the draw."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mambad.engine.batch import SampleSpec
from mambad.engine.logit_edits import LARGEST_LOGIT, edit_logits, needs_edits
from mambad.engine.sampler import Sampler
from mambad.engine.sampling_params import SamplingParams
from mambad.engine.token_masks import MASKED as MASKED_LOGIT
from mambad.kernels.reference.ops import ReferenceOps

MASKED = float(np.float32(MASKED_LOGIT))

EOS = 2


def spec(tokens: Sequence[int] = (), num_prompt: int = 0, **params: Any) -> SampleSpec:
    return SampleSpec(
        SamplingParams(**params),
        position=len(tokens),
        num_generated=len(tokens) - num_prompt,
        token_ids=tokens,
        num_prompt_tokens=num_prompt,
    )


def edited(logits: Sequence[float], wanted: SampleSpec) -> list[float]:
    row = np.array(logits, dtype=np.float32)
    assert needs_edits(wanted)
    edit_logits(row, wanted, [EOS])
    return [float(value) for value in row]


def naive_penalties(row: NDArray[np.float32], wanted: SampleSpec) -> list[float]:
    params, values = wanted.params, [float(value) for value in row]
    generated = list(wanted.token_ids[wanted.num_prompt_tokens :])
    for token in range(len(values)):
        if token in wanted.token_ids:
            penalty = params.repetition_penalty
            values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
        if token in generated:
            values[token] -= params.presence_penalty
            values[token] -= params.frequency_penalty * generated.count(token)
    return values


@pytest.mark.parametrize("seed", range(20))
def test_penalties_agree_with_a_naive_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    row = rng.standard_normal(97).astype(np.float32)
    wanted = spec(
        tokens=rng.integers(0, 97, 60).tolist(),
        num_prompt=45,
        repetition_penalty=float(rng.choice([0.5, 1.3, 2.0])),
        presence_penalty=float(rng.choice([0.0, -2.0, 1.5])),
        frequency_penalty=float(rng.choice([0.0, -1.0, 0.7])),
    )
    np.testing.assert_allclose(edited(row.tolist(), wanted), naive_penalties(row, wanted), atol=1e-6)


@pytest.mark.parametrize("params", [{"presence_penalty": 1.5}, {"frequency_penalty": 0.5}])
def test_presence_and_frequency_do_not_count_the_prompt(params: dict[str, float]) -> None:
    untouched = edited([1.0, 0.5, 0.0], spec([0, 0, 0], num_prompt=3, **params))
    assert untouched == [1.0, 0.5, 0.0]
    penalised = edited([1.0, 0.5, 0.0], spec([1, 0, 0, 0], num_prompt=1, **params))
    assert penalised == [-0.5, 0.5, 0.0]


def test_bias_is_added_after_the_penalties() -> None:
    wanted = spec([0], num_prompt=1, repetition_penalty=2.0, logit_bias=((0, 3.0), (2, -1.5)))
    assert edited([-1.0, 0.0, -5.0], wanted) == [1.0, 0.0, -6.5]


def test_mask_comes_last_and_ends_with_min_tokens() -> None:
    params: dict[str, Any] = {"min_tokens": 2, "stop_token_ids": (0, 900), "logit_bias": ((EOS, 100.0),)}
    for output in ([], [5]):
        assert edited([1.0, 2.0, 3.0], spec(output, **params)) == [MASKED, 2.0, MASKED]
    assert edited([1.0, 2.0, 3.0], spec([5, 5], **params)) == [1.0, 2.0, 103.0]


def test_eos_is_masked_even_if_it_would_not_end_the_request() -> None:
    assert edited([1.0, 2.0, 3.0], spec(min_tokens=1, ignore_eos=True)) == [1.0, 2.0, MASKED]


def test_edited_logits_stay_finite() -> None:
    huge = [3e38, -3e38, 0.0]
    penalised = spec([0, 1], repetition_penalty=1e-3, presence_penalty=-2.0, logit_bias=((0, 100.0),))
    assert edited(huge, penalised) == [LARGEST_LOGIT, pytest.approx(-3e35), 0.0]
    assert edited(huge, spec([0, 1], num_prompt=2, repetition_penalty=1e3))[1] == -LARGEST_LOGIT


def test_plain_request_needs_no_edits() -> None:
    assert not needs_edits(spec([1, 2], temperature=0.3, top_k=5, top_p=0.5, min_p=0.1, stop_token_ids=(3,)))
    assert not needs_edits(spec([1, 2], min_tokens=2))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sampler_draws_from_the_edited_logits(temperature: float) -> None:
    logits = torch.zeros(5, 8)
    logits[:, EOS] = 50.0
    logits[:, 5] = 40.0
    specs = [
        spec(temperature=temperature),
        spec([7], min_tokens=2, temperature=temperature),
        spec(min_tokens=1, stop_token_ids=(5,), logit_bias=((6, 90.0),), temperature=temperature),
        spec([EOS], frequency_penalty=2.0, presence_penalty=30.0, temperature=temperature),
        spec(temperature=temperature, logit_bias=((4, 100.0),)),
    ]
    for order in ([0, 1, 2, 3, 4], [1, 2], [0, 4], [3]):
        rows = Sampler([EOS], ReferenceOps("tests")).sample(logits[order], [specs[i] for i in order])
        assert [row.token_id for row in rows] == [[EOS, 5, 6, 5, 4][i] for i in order]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masking_every_token_still_gives_a_token(temperature: float) -> None:
    wanted = spec(min_tokens=5, stop_token_ids=tuple(range(8)), temperature=temperature)
    (row,) = Sampler([EOS], ReferenceOps("tests")).sample(torch.zeros(1, 8), [wanted])
    assert row.is_finite
    assert 0 <= row.token_id < 8


@pytest.mark.parametrize("temperature", [0.0, 1e-4, 1.0, 2.0])
@pytest.mark.parametrize(
    "masks",
    [
        {},
        {"min_tokens": 9, "stop_token_ids": (3, 5)},
        {"bad_words": ((3,), (5,))},
        {"logit_bias": ((3, -100.0), (5, -100.0), (0, 100.0))},
    ],
)
def test_only_allowed_tokens_are_drawn_whatever_else_is_masked(
    temperature: float, masks: dict[str, Any]
) -> None:
    logits = torch.linspace(50, -50, 8).repeat(20, 1)
    specs = [spec([7] * n, temperature=temperature, allowed_token_ids=(3, 5), **masks) for n in range(1, 21)]
    if "min_tokens" in masks:
        specs = [spec([7], num_prompt=1, temperature=temperature, allowed_token_ids=(3, 5), **masks)] * 20
    assert {row.token_id for row in Sampler([EOS], ReferenceOps("tests")).sample(logits, specs)} <= {3, 5}
