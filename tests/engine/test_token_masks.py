"""Masks of one row: what is not allowed is never drawn, a bad word only when nothing else is left."""

import numpy as np
import pytest

from mambad.engine.batch import SampleSpec
from mambad.engine.sampling_params import SamplingParams
from mambad.engine.token_masks import FORBIDDEN, MASKED, has_masks, mask_tokens

EOS = 0


def masked(generated=(), prompt=(7,), **params):
    """Return a row of ten zeros after its masks."""
    spec = SampleSpec(
        SamplingParams(**params), len(prompt), len(generated), [*prompt, *generated], len(prompt)
    )
    row = np.zeros(10, dtype=np.float32)
    if has_masks(spec):
        mask_tokens(row, spec, (EOS,))
    return row.tolist()


def places(row, value):
    return [index for index, logit in enumerate(row) if logit == np.float32(value)]


def test_a_request_without_masks_is_left_alone():
    assert masked() == [0.0] * 10


def test_only_allowed_tokens_keep_their_logits():
    row = masked(allowed_token_ids=(2, 5))
    assert places(row, 0.0) == [2, 5]
    assert places(row, FORBIDDEN) == [0, 1, 3, 4, 6, 7, 8, 9]


def test_a_bad_word_of_one_token_is_always_masked():
    assert places(masked(bad_words=((3,), (4,))), MASKED) == [3, 4]


@pytest.mark.parametrize(
    ("generated", "expected"),
    [((), []), ((1,), []), ((1, 2), [3]), ((9, 1, 2), [3]), ((1, 2, 3), []), ((2,), [])],
)
def test_a_longer_bad_word_is_masked_where_it_would_be_completed(generated, expected):
    assert places(masked(generated, bad_words=((1, 2, 3),)), MASKED) == expected


def test_a_bad_word_does_not_begin_in_the_prompt():
    assert masked((2,), prompt=(1,), bad_words=((1, 2, 3),)) == [0.0] * 10
    assert places(masked((), prompt=(1, 2), bad_words=((2, 3),)), MASKED) == []


def test_ends_are_masked_until_min_tokens():
    assert places(masked((1,), min_tokens=2, stop_token_ids=(4, 999)), MASKED) == [EOS, 4]
    assert masked((1, 1), min_tokens=2, stop_token_ids=(4,)) == [0.0] * 10


def test_an_allowed_token_wins_over_all_others_even_where_it_is_masked():
    row = masked(allowed_token_ids=(EOS, 6), bad_words=((6,),), min_tokens=1)
    assert places(row, MASKED) == [EOS, 6]
    assert max(value for index, value in enumerate(row) if index not in (EOS, 6)) == np.float32(FORBIDDEN)
    assert int(np.argmax(row)) == EOS
