"""Wire request → what the engine is asked for. Pure: bytes in, a frozen plan out; nothing is submitted here.

Everything that can be wrong with a request is found here, before any response header is sent. A request
without a seed gets its seed here. May run in a thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from mambad.engine.request import Submission
from mambad.engine.sampling_params import SamplingParams
from mambad.server.choice import PromptText, TextOptions
from mambad.server.errors import ApiError, invalid
from mambad.server.json_body import parse_object
from mambad.server.prompts import PromptRules, read_prompts
from mambad.server.sampling import (
    ModelLimits,
    check_combinations,
    default_to,
    read_stops,
    sampling_params,
)
from mambad.server.schemas.common import FieldPolicy
from mambad.server.schemas.completions import MAX_PROMPTS, CompletionRequest
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
        model = self.model_name(wire.model)
        check_combinations(wire)
        params = sampling_params(wire, self._settings, limits)
        prompts = read_prompts(wire.prompt, self._text, _prompt_rules(wire, params, limits))
        if wire.priority and self._settings.scheduling_policy != "priority":
            raise invalid("priority", "`priority` needs --scheduling-policy priority.")
        options = wire.stream_options
        return CompletionPlan(
            model=model,
            prompts=prompts,
            num_choices=wire.n or 1,
            params=params,
            max_model_len=limits.max_model_len,
            text_options=_text_options(wire, params),
            priority=wire.priority or 0,
            stream=bool(wire.stream),
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            return_token_ids=bool(wire.return_token_ids),
            tokens_as_ids=bool(wire.return_tokens_as_token_ids),
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


def _prompt_rules(wire: CompletionRequest, params: SamplingParams, limits: ModelLimits) -> PromptRules:
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
        add_special_tokens=default_to(wire.add_special_tokens, True),
        truncate_to=truncate_to,
        keeps_end=wire.truncation_side != "right",
    )


def _text_options(wire: CompletionRequest, params: SamplingParams) -> TextOptions:
    return TextOptions(
        stops=read_stops(wire.stop),
        is_stop_included=bool(wire.include_stop_str_in_output),
        skip_special_tokens=default_to(wire.skip_special_tokens, True),
        min_tokens=params.min_tokens,
        echo=bool(wire.echo),
        num_logprobs=params.num_logprobs,
    )
