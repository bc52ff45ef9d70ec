"""A request in the engine: from submit to finish. Only the scheduler writes its fields. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from mambad.engine.cuts import find_cuts
from mambad.engine.runner import SwappedState
from mambad.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from mambad.engine.grammar import RequestGrammar


class Submission(msgspec.Struct, frozen=True):
    """What the front end asks for: one choice of one prompt.

    Attributes:
        request_id: unique among the live requests.
        prompt_token_ids: at least one id, each below the model's vocabulary size.
        params: validated sampling parameters.
        priority: lower is more urgent; only looked at under the priority policy.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    params: SamplingParams
    priority: int = 0


class RequestStatus(Enum):
    """Where a request is in its life."""

    COMPILING = "compiling"
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """One request's progress.

    `num_launched_tokens` of `token_ids` were handed to launched steps, `num_computed_tokens` of them to
    completed ones. `num_pending_samples` tokens are being drawn by a launched step: they count as
    tokens, but nobody knows them yet.

    Attributes:
        key: the engine's number of the request; the owner of its slot and blocks.
        request_id: the front end's name of it.
        token_ids: prompt, then output.
        num_prompt_tokens: how many of `token_ids` are prompt.
        cuts: where the prompt's prefill may be split.
        last_launched_step: last step that works on the request; its slot is read until that completes.
        is_yielding: to be preempted as soon as no launched step works on it.
        swapped: its state and blocks in host memory while preempted; None means compute them again.
        num_kept_tokens: output tokens to count when the front end ended the request at a stop string.
        num_prompt_tokens_counted, num_prompt_logprobs_sent: prompt tokens that were counted and reported;
            when the prompt is computed again they are not counted and reported again.
        grammar: has taken in exactly the output tokens that are known; stays when the request is preempted.
    """

    key: int
    request_id: str
    params: SamplingParams
    priority: int
    arrival_s: float
    token_ids: list[int]
    num_prompt_tokens: int
    cuts: list[int]
    status: RequestStatus = RequestStatus.WAITING
    num_launched_tokens: int = 0
    num_computed_tokens: int = 0
    num_pending_samples: int = 0
    last_launched_step: int = 0
    is_yielding: bool = False
    swapped: SwappedState | None = None
    num_preemptions: int = 0
    num_kept_tokens: int | None = None
    admitted_s: float | None = None
    first_token_s: float | None = None
    num_prompt_tokens_counted: int = 0
    num_prompt_logprobs_sent: int = 0
    grammar: "RequestGrammar | None" = None

    @classmethod
    def from_submission(
        cls, key: int, submission: Submission, end_of_message_ids: frozenset[int], now: float
    ) -> "Request":
        """Make the engine's record of a submission."""
        prompt = list(submission.prompt_token_ids)
        return cls(
            key=key,
            request_id=submission.request_id,
            params=submission.params,
            priority=submission.priority,
            arrival_s=now,
            token_ids=prompt,
            num_prompt_tokens=len(prompt),
            cuts=find_cuts(prompt, end_of_message_ids),
        )

    @property
    def order(self) -> tuple[int, int]:
        """Who comes first: the more urgent, then the older. The greatest is preempted first."""
        return (self.priority, self.key)

    @property
    def num_tokens(self) -> int:
        """Tokens of the request, those being drawn included."""
        return len(self.token_ids) + self.num_pending_samples

    @property
    def num_generated_tokens(self) -> int:
        """Output tokens known so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def waits_for_grammar(self) -> bool:
        """Whether its grammar is still being compiled."""
        return self.grammar is not None and not self.grammar.is_ready

    @property
    def is_in_flight(self) -> bool:
        """Whether a launched step that is not yet committed works on the request."""
        return self.num_computed_tokens < self.num_launched_tokens

    @property
    def is_prefilling(self) -> bool:
        """Whether tokens of the prompt have not been launched yet."""
        return self.num_launched_tokens < self.num_prompt_tokens
