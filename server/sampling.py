"""Sampling fields of a request → SamplingParams, with the documented defaults and ranges. Pure.

Ranges of single numbers stand in the wire model; here is what depends on the model, on settings or on two
fields at once.
"""

import secrets
from typing import Any, Protocol, TypeVar

from mambad.engine.sampling_params import SamplingParams
from mambad.server.errors import invalid
from mambad.server.prompts import check_token_ids
from mambad.server.schemas.completions import (
    MAX_LOGIT_BIASES,
    MAX_STOP_CHARS,
    MAX_STOPS,
    CompletionRequest,
)
from mambad.server.settings import AppSettings

MAX_BIAS = 100.0
T = TypeVar("T")


class ModelLimits(Protocol):
    """What the conversion needs to know of the engine."""

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer together."""
        ...

    @property
    def vocab_size(self) -> int:
        """Ids that the tokenizer knows; padding rows of the embedding don't count."""
        ...


def sampling_params(wire: CompletionRequest, settings: AppSettings, limits: ModelLimits) -> SamplingParams:
    """Return what the engine is asked for, without the fields of a single choice.

    Raises:
        ApiError: 400 naming the field.
    """
    max_tokens = default_to(wire.max_tokens, settings.default_completion_tokens)
    min_tokens = wire.min_tokens or 0
    if min_tokens > max_tokens:
        raise invalid("min_tokens", f"`min_tokens` is {min_tokens}, more than `max_tokens`, {max_tokens}.")
    num_logprobs = default_to(wire.logprobs, -1)
    if num_logprobs > settings.max_logprobs:
        raise invalid("logprobs", f"`logprobs` may be {settings.max_logprobs} at most.")
    stop_token_ids = wire.stop_token_ids or ()
    check_token_ids("stop_token_ids", stop_token_ids, limits.vocab_size)
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=float(default_to(wire.temperature, 1.0)),
        top_k=min(max(wire.top_k or 0, 0), limits.vocab_size),
        top_p=float(default_to(wire.top_p, 1.0)),
        min_p=float(wire.min_p or 0),
        repetition_penalty=float(default_to(wire.repetition_penalty, 1.0)),
        presence_penalty=float(wire.presence_penalty or 0),
        frequency_penalty=float(wire.frequency_penalty or 0),
        logit_bias=_logit_bias(wire.logit_bias, limits.vocab_size),
        stop_token_ids=tuple(stop_token_ids),
        ignore_eos=bool(wire.ignore_eos),
        seed=default_to(wire.seed, secrets.randbits(63)),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_logprobs if wire.echo else -1,
        has_stop_strings=bool(read_stops(wire.stop)),
    )


def check_combinations(wire: CompletionRequest) -> None:
    """Refuse what the fields ask for together, and what is only supported in one form.

    Raises:
        ApiError: 400 naming the field.
    """
    if wire.suffix is not None:
        raise invalid("suffix", "`suffix` is not currently supported.", "unsupported_parameter")
    if wire.best_of is not None and wire.best_of != (wire.n or 1):
        raise invalid("best_of", "`best_of` is only supported when it equals `n`.", "unsupported_parameter")
    if wire.response_format is not None and wire.response_format != {"type": "text"}:
        raise invalid(
            "response_format", "`response_format` may only be of type `text`.", "unsupported_parameter"
        )
    if wire.stream_options is not None and not wire.stream:
        raise invalid("stream_options", "`stream_options` needs `stream: true`.")
    if wire.stream_options is not None and wire.stream_options.include_obfuscation:
        name = "stream_options.include_obfuscation"
        raise invalid(name, f"`{name}` is not supported by this server.", "unsupported_parameter")
    if wire.max_tokens == 0 and not wire.echo:
        raise invalid("max_tokens", "`max_tokens` may only be 0 together with `echo: true`.")
    if wire.truncate_prompt_tokens == 0:
        raise invalid("truncate_prompt_tokens", "`truncate_prompt_tokens` must be -1 or at least 1.")
    if wire.truncation_side is not None and wire.truncate_prompt_tokens is None:
        raise invalid("truncation_side", "`truncation_side` needs `truncate_prompt_tokens`.")


def read_stops(value: Any) -> tuple[str, ...]:
    """Return the stop strings of a request.

    Raises:
        ApiError: 400.
    """
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise invalid("stop", f"`stop` must be a string or a list of at most {MAX_STOPS} strings.")
    for stop in stops:
        if not isinstance(stop, str) or not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise invalid("stop", f"Each stop string must have 1 to {MAX_STOP_CHARS} characters.")
    return tuple(stops)


def _logit_bias(value: Any, vocab_size: int) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict) or len(value) > MAX_LOGIT_BIASES:
        raise invalid("logit_bias", f"`logit_bias` must be an object of at most {MAX_LOGIT_BIASES} entries.")
    biases = []
    for key, bias in value.items():
        is_number = key.isascii() and key.isdigit() and len(key) < 20
        if not is_number or int(key) >= vocab_size or str(int(key)) != key:
            raise invalid("logit_bias", f"Keys of `logit_bias` must be token ids: 0 to {vocab_size - 1}.")
        if type(bias) not in (int, float) or not -MAX_BIAS <= bias <= MAX_BIAS:
            raise invalid("logit_bias", "Values of `logit_bias` must be numbers from -100 to 100.")
        biases.append((int(key), float(bias)))
    return tuple(biases)


def default_to(value: T | None, default: T) -> T:
    """Return the default where the client gave nothing, or null."""
    return default if value is None else value
