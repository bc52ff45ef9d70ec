"""Wire request → what the engine is asked for. Pure: bytes in, a frozen plan out; nothing is submitted here.

Everything that can be wrong with a request is found here, before any response header is sent. A request
without a seed gets its seed here. May run in a thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from mambad.engine.request import Submission
from mambad.engine.sampling_params import SamplingParams
from mambad.server.choice import PromptText, TextOptions
from mambad.server.errors import ApiError, invalid
from mambad.server.json_body import parse_object
from mambad.server.prompts import PromptRules, read_prompts
from mambad.server.sampling import (
    Asked,
    ModelLimits,
    asked_of_completion,
    check_completion,
    default_to,
    read_bad_words,
    read_stops,
    sampling_params,
)
from mambad.server.schemas.common import FieldPolicy
from mambad.server.schemas.completions import MAX_PROMPT_SCORES, MAX_PROMPTS, CompletionRequest
from mambad.server.schemas.generation import GenerationRequest
from mambad.server.settings import AppSettings
from mambad.server.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class CompletionPlan:
    """A request for completions that can be served.

    Attributes:
        model: the name to answer under.
        prompts: its prompts, in order.
        num_choices: choices of each prompt; choice j of prompt i has index `i * num_choices + j`.
        params: sampling parameters, without the choice's own fields.
        text_options: how text is made.
        priority: as in Submission.
        stream: whether the answer is streamed.
        include_usage, continuous_usage: usage in a last chunk of its own, in every chunk.
        return_token_ids, tokens_as_ids: ids beside the text, ids instead of token texts.
        request_id: the client's own name of the request; None = it has none.
    """

    model: str
    prompts: list[PromptText]
    num_choices: int
    params: SamplingParams
    max_model_len: int
    text_options: TextOptions
    priority: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    tokens_as_ids: bool
    request_id: str | None = None

    def submissions(self, response_id: str) -> Iterator[Submission]:
        """Yield one submission a choice, in order of index. `response_id` is unique to this answer."""
        for i, prompt in enumerate(self.prompts):
            room = self.max_model_len - len(prompt.token_ids)
            max_tokens = min(self.params.max_tokens, room)
            for j in range(self.num_choices):
                params = msgspec.structs.replace(
                    self.params,
                    max_tokens=max_tokens,
                    min_tokens=min(self.params.min_tokens, max_tokens),
                    prompt_index=i,
                    choice_index=j,
                )
                index = i * self.num_choices + j
                yield Submission(f"{response_id}-{index}", prompt.token_ids, params, self.priority)


class Converter:
    """Turns requests into plans for one model."""

    def __init__(self, text: TextTokenizer, settings: AppSettings) -> None:
        self._text = text
        self._settings = settings
        self.field_policy = FieldPolicy(settings.strict_request_fields)

    def completion(self, raw: bytes, limits: ModelLimits) -> CompletionPlan:
        """Read the body of `POST /v1/completions`.

        Raises:
            ApiError, ValidationError, RequestError: what is wrong with it.
        """
        wire = CompletionRequest.model_validate(parse_object(raw))
        self.field_policy.check(wire.model_extra or {})
        self.model_name(wire.model)
        check_completion(wire)
        params = self.params(wire, limits, asked_of_completion(wire, self._settings))
        rules = prompt_rules(wire, params, limits, default_to(wire.add_special_tokens, True))
        prompts = read_prompts(wire.prompt, self._text, rules)
        _check_scores(wire, prompts, params)
        options = replace(
            text_options(wire, params),
            echo=bool(wire.echo),
            num_prompt_logprobs=default_to(wire.prompt_logprobs, -1),
        )
        return self.plan(wire, limits, prompts, params, options)

    def params(self, wire: GenerationRequest, limits: ModelLimits, asked: Asked) -> SamplingParams:
        """Return what the engine is asked for; raises ApiError as `sampling_params` does."""
        params = sampling_params(wire, self._settings, limits, asked)
        return msgspec.structs.replace(params, bad_words=read_bad_words(wire.bad_words, self._text))

    def plan(
        self,
        wire: GenerationRequest,
        limits: ModelLimits,
        prompts: list[PromptText],
        params: SamplingParams,
        text_options: TextOptions,
    ) -> CompletionPlan:
        """Put the parts of a plan together.

        Raises:
            ApiError: 400 for a priority that would not count.
        """
        if wire.priority and self._settings.scheduling_policy != "priority":
            raise invalid("priority", "`priority` needs --scheduling-policy priority.")
        options = wire.stream_options
        return CompletionPlan(
            model=self.model_name(wire.model),
            prompts=prompts,
            num_choices=wire.n or 1,
            params=params,
            max_model_len=limits.max_model_len,
            text_options=text_options,
            priority=wire.priority or 0,
            stream=bool(wire.stream),
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            return_token_ids=bool(wire.return_token_ids),
            tokens_as_ids=bool(wire.return_tokens_as_token_ids),
            request_id=wire.request_id,
        )

    def model_name(self, name: str | None) -> str:
        """Return the name to answer under.

        Raises:
            ApiError: 404 for a name that is not served.
        """
        names = self._settings.served_model_names
        if not name:
            return names[0]
        if name in names:
            return name
        message = f"The model `{name[:200]}` does not exist. Valid aliases: {', '.join(names)}."
        raise ApiError(404, message, "model", "model_not_found")


def _check_scores(wire: CompletionRequest, prompts: list[PromptText], params: SamplingParams) -> None:
    """Bound what an answer holds for the prompts alone, before any of it is computed."""
    num_tokens = sum(len(prompt.token_ids) for prompt in prompts) * (wire.n or 1)
    num_scores = num_tokens * (params.num_prompt_logprobs + 1)
    if num_scores > MAX_PROMPT_SCORES:
        param = "prompt_logprobs" if wire.prompt_logprobs is not None else "logprobs"
        raise invalid(
            param,
            f"This asks for {num_scores} log-probabilities of prompts; one request may have "
            f"{MAX_PROMPT_SCORES}. Send fewer prompts at once, or a smaller `{param}`.",
        )


def prompt_rules(
    wire: GenerationRequest, params: SamplingParams, limits: ModelLimits, add_special_tokens: bool
) -> PromptRules:
    """Return what the prompts of a request must keep to."""
    max_model_len = limits.max_model_len
    max_prompt_tokens = max_model_len - min(params.max_tokens, 1)
    truncate_to = wire.truncate_prompt_tokens
    if truncate_to == -1:
        truncate_to = max(max_model_len - params.max_tokens, 1)
    return PromptRules(
        vocab_size=limits.vocab_size,
        max_model_len=max_model_len,
        max_prompt_tokens=max_prompt_tokens,
        max_prompts=MAX_PROMPTS // (wire.n or 1),
        add_special_tokens=add_special_tokens,
        truncate_to=truncate_to,
        keeps_end=wire.truncation_side != "right",
    )


def text_options(wire: GenerationRequest, params: SamplingParams) -> TextOptions:
    """Return how the text of a request's choices is made."""
    return TextOptions(
        stops=read_stops(wire.stop),
        is_stop_included=bool(wire.include_stop_str_in_output),
        skip_special_tokens=default_to(wire.skip_special_tokens, True),
        min_tokens=params.min_tokens,
        num_logprobs=params.num_logprobs,
    )
