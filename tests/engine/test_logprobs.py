"""Reported log-probabilities: right, ordered, finite, and a row's own."""

import numpy as np
import pytest
import torch
from torch import Tensor

from mambad.engine.logprobs import finite_rows, token_logprobs


def random_logits(num_rows: int, vocab_size: int, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 4


def test_logprobs_agree_with_float64() -> None:
    logits = random_logits(5, 97)
    expected = torch.log_softmax(logits.double(), dim=-1)
    entries = token_logprobs(logits, [3, 0, 96, 50, 7], [0, 1, 5, 97, 200])
    for row, (entry, token_id, num_top) in enumerate(
        zip(entries, [3, 0, 96, 50, 7], [0, 1, 5, 97, 97], strict=True)
    ):
        assert entry.token_id == token_id
        assert entry.logprob == pytest.approx(expected[row, token_id].item(), abs=1e-5)
        assert len(entry.top) == num_top
        order = np.lexsort((np.arange(97), -logits[row].numpy())).tolist()
        assert [token for token, _ in entry.top] == order[:num_top]
        for token, logprob in entry.top:
            assert logprob == pytest.approx(expected[row, token].item(), abs=1e-5)


def test_listed_and_chosen_token_have_the_same_float() -> None:
    logits = random_logits(1, 50277)
    best = int(logits.argmax())
    (entry,) = token_logprobs(logits, [best], [3])
    assert entry.top[0] == (best, entry.logprob)


def test_equal_logits_list_the_lower_id_first() -> None:
    logits = torch.zeros(1, 40)
    logits[0, [31, 5, 17]] = 2.0
    (entry,) = token_logprobs(logits, [0], [5])
    assert [token for token, _ in entry.top] == [5, 17, 31, 0, 1]


@pytest.mark.parametrize("vocab_size", [97, 1000, 50277])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_row_gives_the_same_bytes_alone_and_among_others(vocab_size: int, num_threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    logits = random_logits(33, vocab_size)
    targets = [row % vocab_size for row in range(33)]
    together = token_logprobs(logits, targets, [3] * 33)
    order = np.random.default_rng(1).permutation(33).tolist()
    shuffled = token_logprobs(logits[order], [targets[row] for row in order], [9] * 33)
    for row in (0, 1, 15, 31, 32):
        (alone,) = token_logprobs(logits[row : row + 1].clone(), targets[row : row + 1], [3])
        # Equality of floats, not of their texts: no value here is NaN or a zero of either sign.
        assert alone == together[row]
        other = shuffled[order.index(row)]
        assert (other.logprob, other.top[:3]) == (alone.logprob, alone.top)
    torch.set_num_threads(before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("column", [0, 48, 96])
def test_one_bad_logit_marks_its_row_and_no_other(bad: float, column: int) -> None:
    logits = random_logits(4, 97)
    logits[2, column] = bad
    assert finite_rows(logits).tolist() == [True, True, False, True]
