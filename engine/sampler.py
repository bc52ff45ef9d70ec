"""Draws one token a row from (R, V) logits.

Owns the order in which a request's parameters act: penalties, logit bias and masks (all three in
`mambad.engine.logit_edits`), then temperature, top-k, top-p, min-p and the draw (`Ops.draw`). A row's result
depends on its logits, its parameters and the key of its draw, and on no other row, bit for bit. Rows
that ask for little pay for little. It does not decide when a request ends, and it keeps nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mambad.engine.batch import SampleSpec
from mambad.engine.logit_edits import edit_logits, needs_edits
from mambad.engine.logprobs import token_logprobs
from mambad.engine.outputs import TokenLogprobs
from mambad.engine.random_draws import uniform_draws
from mambad.kernels.draws import DrawParams
from mambad.kernels.ops import Ops


@dataclass(frozen=True, slots=True)
class SampledRow:
    """What was drawn for one row.

    Attributes:
        token_id: the drawn token; 0 without meaning when not is_finite.
        logprobs: of that token in the model's own distribution, if asked for and is_finite.
        is_finite: False when a logit of the row was NaN or infinite.
    """

    token_id: int
    logprobs: TokenLogprobs | None
    is_finite: bool


class Sampler:
    """Samples rows of logits in host memory.

    Args:
        eos_token_ids: the model's end-of-sequence ids, which min_tokens masks.
        ops: the kernels that draw.
    """

    def __init__(self, eos_token_ids: Sequence[int], ops: Ops) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._ops = ops

    def sample(self, logits: Tensor, specs: Sequence[SampleSpec]) -> list[SampledRow]:
        """Draw a token for each row.

        Args:
            logits: (R, V) float32, contiguous; not changed.
            specs: what is wanted for each row, R of them.
        """
        assert logits.shape[0] == len(specs), "one spec a row"
        edited = [row for row, spec in enumerate(specs) if needs_edits(spec)]
        params = _draw_params(specs, edited)
        token_ids = self._ops.draw(logits, params)
        rows = [row for row in edited if token_ids[row] >= 0]
        if rows:
            token_ids[rows] = self._draw_edited(logits, rows, [specs[row] for row in rows])
        return _results(logits, specs, token_ids.tolist())

    def _draw_edited(self, logits: Tensor, rows: list[int], specs: Sequence[SampleSpec]) -> NDArray[np.int64]:
        """Draw for the given rows of `logits`, which are finite, from edited copies."""
        copies = logits.index_select(0, torch.tensor(rows))
        for copy, spec in zip(copies, specs, strict=True):
            edit_logits(copy.numpy(), spec, self._eos_token_ids)
        return self._ops.draw(copies, _draw_params(specs, ()))


def _draw_params(specs: Sequence[SampleSpec], without_draw: Sequence[int]) -> DrawParams:
    """Return the parameters; rows `without_draw` only find out whether their logits are finite."""
    temperatures = np.array(
        [0.0 if spec.params.is_greedy else spec.params.temperature for spec in specs], dtype=np.float32
    )
    temperatures[list(without_draw)] = 0.0
    num_rows = len(specs)
    if not temperatures.any():
        zeros = np.zeros(num_rows)
        return DrawParams(temperatures, np.zeros(num_rows, np.int64), zeros, zeros.astype(np.float32), zeros)
    return DrawParams(
        temperatures,
        top_k=np.array([spec.params.top_k for spec in specs], dtype=np.int64),
        top_p=np.array([spec.params.top_p for spec in specs], dtype=np.float64),
        min_p=np.array([spec.params.min_p for spec in specs], dtype=np.float32),
        uniforms=uniform_draws(specs),
    )


def _take(rows: Tensor, indices: list[int]) -> Tensor:
    return rows if len(indices) == rows.shape[0] else rows.index_select(0, torch.tensor(indices))


def _results(logits: Tensor, specs: Sequence[SampleSpec], token_ids: Sequence[int]) -> list[SampledRow]:
    rows = [row for row, spec in enumerate(specs) if spec.params.num_logprobs >= 0 and token_ids[row] >= 0]
    logprobs: dict[int, TokenLogprobs] = {}
    if rows:
        entries = token_logprobs(
            _take(logits, rows),
            [token_ids[row] for row in rows],
            [specs[row].params.num_logprobs for row in rows],
        )
        logprobs = dict(zip(rows, entries, strict=True))
    return [
        SampledRow(max(token_id, 0), logprobs.get(row), token_id >= 0)
        for row, token_id in enumerate(token_ids)
    ]
