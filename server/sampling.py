"""Sampling fields of a request → SamplingParams, with the documented defaults and ranges. Pure.

Ranges of single numbers stand in the wire model; here is what depends on the model, on settings or on two
fields at once.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from mambad.engine.sampling_params import SamplingParams
from mambad.server.errors import invalid
from mambad.server.prompts import check_token_ids
from mambad.server.schemas.completions import CompletionRequest
from mambad.server.schemas.generation import (
    MAX_LOGIT_BIASES,
    MAX_STOP_CHARS,
    MAX_STOPS,
    GenerationRequest,
)
from mambad.server.settings import AppSettings
from mambad.server.structured import read_constraint
from mambad.server.tokenizer import TextTokenizer

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

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a sequence."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """What each endpoint calls by names of its own; -1 asks for no log-probabilities."""

    max_tokens: int
    num_logprobs: int = -1
    num_prompt_logprobs: int = -1


def asked_of_completion(wire: CompletionRequest, settings: AppSettings) -> Asked:
    """Return what a request for completions asks for.

    Raises:
        ApiError: 400 naming the field.
    """
    num_logprobs = checked_logprobs("logprobs", wire.logprobs, settings)
    num_prompt_logprobs = checked_logprobs("prompt_logprobs", wire.prompt_logprobs, settings)
    return Asked(
        max_tokens=default_to(wire.max_tokens, settings.default_completion_tokens),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=max(num_logprobs if wire.echo else -1, num_prompt_logprobs),
    )


def sampling_params(
    wire: GenerationRequest, settings: AppSettings, limits: ModelLimits, asked: Asked
) -> SamplingParams:
    """Return what the engine is asked for, without the fields of a single choice.

    Raises:
        ApiError: 400 naming the field.
    """
    defaults = settings.sampling_defaults
    max_tokens = asked.max_tokens
    min_tokens = wire.min_tokens or 0
    if min_tokens > max_tokens:
        raise invalid("min_tokens", f"`min_tokens` is {min_tokens}, more than `max_tokens`, {max_tokens}.")
    stop_token_ids, allowed_token_ids = wire.stop_token_ids or (), wire.allowed_token_ids or ()
    check_token_ids("stop_token_ids", stop_token_ids, limits.vocab_size)
    check_token_ids("allowed_token_ids", allowed_token_ids, limits.vocab_size)
    return SamplingParams(
        max_tokens=min(max_tokens, default_to(defaults.max_new_tokens, max_tokens)),
        min_tokens=min(min_tokens, default_to(defaults.max_new_tokens, min_tokens)),
        temperature=float(default_to(wire.temperature, defaults.temperature)),
        top_k=min(max(default_to(wire.top_k, defaults.top_k), 0), limits.vocab_size),
        top_p=float(default_to(wire.top_p, defaults.top_p)),
        min_p=float(default_to(wire.min_p, defaults.min_p)),
        repetition_penalty=float(default_to(wire.repetition_penalty, defaults.repetition_penalty)),
        presence_penalty=float(wire.presence_penalty or 0),
        frequency_penalty=float(wire.frequency_penalty or 0),
        logit_bias=_logit_bias(wire.logit_bias, limits.vocab_size),
        stop_token_ids=tuple(stop_token_ids),
        ignore_eos=bool(wire.ignore_eos),
        allowed_token_ids=tuple(sorted(set(allowed_token_ids))),
        seed=default_to(wire.seed, secrets.randbits(63)),
        num_logprobs=asked.num_logprobs,
        num_prompt_logprobs=asked.num_prompt_logprobs,
        grammar=read_constraint(wire.response_format, wire.structured_outputs),
        has_stop_strings=bool(read_stops(wire.stop)),
    )


def check_completion(wire: CompletionRequest) -> None:
    """Refuse what the fields of a request for completions ask for together.

    Raises:
        ApiError: 400 naming the field.
    """
    check_combinations(wire)
    if wire.suffix is not None:
        raise invalid("suffix", "`suffix` is not currently supported.", "unsupported_parameter")
    if wire.best_of is not None and wire.best_of != (wire.n or 1):
        raise invalid("best_of", "`best_of` is only supported when it equals `n`.", "unsupported_parameter")
    if wire.prompt_logprobs is not None and wire.stream:
        raise invalid("prompt_logprobs", "`prompt_logprobs` can't be had with `stream: true`.")
    if wire.max_tokens == 0 and not wire.echo:
        raise invalid("max_tokens", "`max_tokens` may only be 0 together with `echo: true`.")


def check_combinations(wire: GenerationRequest) -> None:
    """Refuse what shared fields ask for together, and what is only supported in one form.

    Raises:
        ApiError: 400 naming the field.
    """
    if wire.stream_options is not None and not wire.stream:
        raise invalid("stream_options", "`stream_options` needs `stream: true`.")
    if wire.truncate_prompt_tokens == 0:
        raise invalid("truncate_prompt_tokens", "`truncate_prompt_tokens` must be -1 or at least 1.")


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


def read_bad_words(words: Sequence[str] | None, text: TextTokenizer) -> tuple[tuple[int, ...], ...]:
    """Return the token sequences of words that must not be generated: each as it is, and after a space."""
    sequences: dict[tuple[int, ...], None] = {}
    for word in words or ():
        bare = tuple(text.encode(word, False))
        spaced = tuple(text.encode(f" {word.lstrip()}", False))
        sequences |= dict.fromkeys((bare,) if spaced[-len(bare) :] == bare else (bare, spaced))
    return tuple(sequence for sequence in sequences if sequence)


def checked_logprobs(param: str, value: int | None, settings: AppSettings) -> int:
    """Return how many log-probabilities a position were asked for; -1 none.

    Raises:
        ApiError: 400 naming `param`.
    """
    if value is not None and value > settings.max_logprobs:
        raise invalid(param, f"`{param}` may be {settings.max_logprobs} at most.")
    return default_to(value, -1)


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
