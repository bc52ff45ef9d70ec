"""What one step computes, as the scheduler decided it: frozen, without tensors.

The scheduler makes a `Batch`, the runner reads it. Nothing here names a row: a request's row is its
place in these tuples and changes every step. Whether something is prefill or decode is said here and
never guessed from a shape. No torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mambad.engine.outputs import TokenLogprobs
from mambad.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from mambad.engine.grammar import RequestGrammar

TOKEN_OF_LAUNCHED_STEP = -1
"""Stands for the token that the step before, launched but not completed, samples for the same slot."""


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """A token is wanted for this row.

    Attributes:
        params: the request's sampling parameters.
        position: absolute position of the token to be drawn; part of the key of the draw.
        num_generated: tokens generated before this one.
        token_ids: prompt and output so far; read only when `params.reads_tokens`.
        num_prompt_tokens: how many of `token_ids` are prompt.
        grammar: says which tokens may come next, if the request has one.
    """

    params: SamplingParams
    position: int
    num_generated: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    grammar: "RequestGrammar | None" = None


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """Tokens [start, end) of one prompt, as whole chunks between cuts.

    Attributes:
        request_key: the engine's number of the request.
        slot: slot that is read (unless start is 0) and written.
        token_ids: the tokens of the span.
        start: number of tokens that the slot's state has consumed already; 0 starts from a zero state.
        chunk_ends: absolute end of each chunk; the last is `start + len(token_ids)`.
        sample: set when the span ends the prompt and a token is wanted.
        num_prompt_logprobs: -1 none, else as in SamplingParams, for every token of the span.
        next_token_id: the prompt token after the span, which its last row predicts; None at the end.
    """

    request_key: int
    slot: int
    token_ids: Sequence[int]
    start: int
    chunk_ends: tuple[int, ...]
    sample: SampleSpec | None
    num_prompt_logprobs: int = -1
    next_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One token of one request through the decode path.

    Attributes:
        request_key: the engine's number of the request.
        slot: slot that is read and written.
        token_id: the token to consume, or TOKEN_OF_LAUNCHED_STEP.
        position: absolute position of that token = tokens that the state has consumed already.
        sample: None when a run of known tokens is replayed and no token is wanted.
    """

    request_key: int
    slot: int
    token_id: int
    position: int
    sample: SampleSpec | None


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """Blocks `block_ids` stand in the slot's row of the block table from column `first_column` on."""

    slot: int
    first_column: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """One step.

    Attributes:
        step_id: ascends from 1.
        prefills, decodes: what is computed.
        table_updates: are applied before anything is computed.
        is_dummy: computes padding only.
        min_decode_rows: the decode path is padded to at least that many rows: what ranks agreed on.
    """

    step_id: int
    prefills: tuple[PrefillSpan, ...] = ()
    decodes: tuple[DecodeRow, ...] = ()
    table_updates: tuple[TableUpdate, ...] = ()
    is_dummy: bool = False
    min_decode_rows: int = 0

    @property
    def kind(self) -> str:
        """Label of the step in metrics: prefill, decode, mixed or dummy."""
        if self.prefills and self.decodes:
            return "mixed"
        if self.prefills:
            return "prefill"
        return "decode" if self.decodes else "dummy"

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes, padding not counted."""
        return len(self.decodes) + sum(len(span.token_ids) for span in self.prefills)


@dataclass(frozen=True, slots=True)
class RowResult:
    """What one row gave.

    Attributes:
        request_key: as in the batch.
        token_id: the drawn token, or None when none was wanted.
        logprobs: for the drawn token, if asked for.
        prompt_logprobs: for the tokens of the span that follow its first position, if asked for: entry i
            is for absolute position `start + 1 + i`.
        is_finite: False when a logit of the row was NaN or infinite; token_id is then meaningless.
    """

    request_key: int
    token_id: int | None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    is_finite: bool = True


@dataclass(frozen=True, slots=True)
class StepResult:
    """Results of a completed step: prefill rows in order, then decode rows in order."""

    step_id: int
    rows: tuple[RowResult, ...]
    duration_s: float
    num_padding_rows: int = 0
    graph_rows: int = 0
