"""What a request's span says of it, in the names of OpenTelemetry's conventions for HTTP and generative AI.

Pure: a record in, plain values out; nothing is imported from OpenTelemetry. What a client wrote is left out
(stop strings, names that are not served), the prompts of `--log-prompts` aside.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from mambad.server.errors import CANCELLED
from mambad.server.request_record import CUT_OFF, Generation, RequestRecord

Value = str | bool | int | float | Sequence[str]
PROVIDER = "mambad"
DISCONNECT = "disconnect"
MAX_TIMED_CHOICES = 40  # a span holds 128 events
MAX_INT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Event:
    """Something that began at a monotonic time and took so long, for one choice."""

    name: str
    at_s: float
    duration_s: float
    choice: int


def span_name(operation: str, record: RequestRecord) -> str:
    """Return `operation model`, or the operation alone where no model was found."""
    return operation if record.generation is None else f"{operation} {record.generation.plan.model}"


def span_attributes(operation: str, route: str, record: RequestRecord) -> dict[str, Value]:
    """Return a finished request's attributes.

    Args:
        operation: see `tracing.OPERATIONS`.
        route: the path of its route.
        record: what is known of it.
    """
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "http.request.method": record.method,
        "http.route": route,
        "http.response.status_code": record.status,
        "url.path": route,
    }
    error_type = error_type_of(record)
    if error_type is not None:
        attributes["error.type"] = error_type
    if record.request_id is not None:
        attributes["mambad.request.id"] = record.request_id
    if record.generation is not None:
        attributes |= _of_request(record.generation) | _of_response(record.generation)
    return attributes


def error_type_of(record: RequestRecord) -> str | None:
    """Return the class of error that a request ended with: its code, or that its client went away."""
    failure = record.failure
    if failure is not None:
        return failure.code or str(failure.status)
    is_left = record.generation is not None and DISCONNECT in record.generation.run.outcome.reasons()
    return DISCONNECT if is_left or record.status == CUT_OFF else None


def is_fault(record: RequestRecord) -> bool:
    """Whether the server is to blame: that, and no mistake of the client's, makes a span an error."""
    failure = record.failure
    if failure is None:
        return record.status >= 500
    return failure.status >= 500 and failure.code != CANCELLED


def timed_events(generation: Generation) -> Iterator[Event]:
    """Yield when each choice began to wait, to be computed and to give tokens, by the engine's own clock."""
    for choice, times in enumerate(generation.run.outcome.times[:MAX_TIMED_CHOICES]):
        if times is None:
            continue
        at_s = times.arrived_s
        for name, duration_s in (
            ("queue", times.queue_s),
            ("prefill", times.prefill_s),
            ("decode", times.decode_s),
        ):
            yield Event(name, at_s, duration_s, choice)
            at_s += duration_s


def _of_request(generation: Generation) -> dict[str, Value]:
    plan = generation.plan
    params = plan.params
    attributes: dict[str, Value] = {
        "gen_ai.request.model": plan.model,
        "gen_ai.request.stream": plan.stream,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.frequency_penalty": params.frequency_penalty,
        "gen_ai.request.presence_penalty": params.presence_penalty,
    }
    if params.top_k > 0:
        attributes["gen_ai.request.top_k"] = params.top_k
    if plan.num_choices != 1:
        attributes["gen_ai.request.choice.count"] = plan.num_choices
    if abs(params.seed) <= MAX_INT:
        attributes["gen_ai.request.seed"] = params.seed
    if generation.prompts:
        attributes["gen_ai.input.messages"] = _messages(generation.prompts)
    return attributes


def _of_response(generation: Generation) -> dict[str, Value]:
    usage, run = generation.run.usage(), generation.run
    attributes: dict[str, Value] = {
        "gen_ai.response.id": generation.response_id,
        "gen_ai.response.model": generation.plan.model,
        "gen_ai.response.finish_reasons": run.outcome.reasons(),
        "gen_ai.usage.input_tokens": usage.num_prompt_tokens,
        "gen_ai.usage.output_tokens": usage.num_completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.num_cached_tokens,
        "mambad.engine": run.rank,
    }
    if generation.plan.stream and generation.ttft_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = generation.ttft_s
    return attributes


def _messages(prompts: Sequence[str]) -> str:
    """Return prompts in the form of the conventions: what the model reads counts as one message each."""
    messages: list[Mapping[str, object]] = [
        {"role": "user", "parts": [{"type": "text", "content": prompt}]} for prompt in prompts
    ]
    return orjson.dumps(messages).decode()
