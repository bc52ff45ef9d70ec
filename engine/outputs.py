"""What a step gives back: tokens per request, and the engine's report of itself.

Frozen values that cross from the engine process to the front end. No torch.
"""

import msgspec

SLOT_STATES = ("free", "reserved", "active", "checkpoint", "quarantined", "leaked")
BLOCK_STATES = ("free", "active", "cached", "quarantined", "leaked")
STEP_KINDS = ("prefill", "decode", "mixed", "dummy")


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token and of the most likely ones at its position.

    Natural logarithms of the model's own distribution, before temperature, penalties and masks.
    `top` is sorted, most likely first, and need not hold the chosen token. `logprob` is None for the
    first token of a prompt, which nothing predicts.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


class RequestTimes(msgspec.Struct, frozen=True, array_like=True):
    """Seconds a finished request spent waiting, in prefill and in decode, measured by the engine.

    `arrived_s` is when the engine got it, on the monotonic clock that all processes of a machine share.
    """

    queue_s: float
    prefill_s: float
    decode_s: float
    arrived_s: float = 0.0


class RequestOutput(msgspec.Struct, frozen=True, array_like=True):
    """What one step (or a finish between steps) yields for one request.

    Attributes:
        request_id: as submitted.
        token_ids: new tokens, in order. An end-of-sequence token is among them.
        logprobs: one entry per new token if asked for, else empty.
        prompt_logprobs: entries for prompt tokens that this step computed, in order, if asked for.
        finish_reason: None while running; else one of `stop length cancelled timeout error shutdown`.
        stop_token_id: the stop id of the request that ended it, None for end-of-sequence and anything else.
        num_cached_tokens: prompt tokens that were not computed again.
        error: message for the client when finish_reason is `error`.
        error_code: OpenAI-style code for the same.
        times: set on the last output.
        ends_in_text: although finish_reason is `stop`, the last token is text: nothing may follow it.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: str | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    error: str | None = None
    error_code: str | None = None
    times: RequestTimes | None = None
    ends_in_text: bool = False


class Histogram(msgspec.Struct, frozen=True, array_like=True):
    """Cumulative since start: `counts[i]` observations fell into bucket i (not summed up), plus their sum.

    `counts` has one entry more than `bounds`: the last counts what lies above all bounds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> "Histogram":
        """Return one that has counted nothing."""
        return cls(bounds, (0,) * (len(bounds) + 1), 0.0)


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """One consistent report: all gauges and counters of one engine, read between two steps.

    `slots` and `kv_blocks` add up to their capacities. Counters run since start. Keys of the dicts are
    label values and always complete.
    """

    time_s: float = 0.0
    slots: dict[str, int] = {}
    slot_capacity: int = 0
    slots_available: int = 0
    slot_size_bytes: int = 0
    kv_blocks: dict[str, int] = {}
    kv_block_capacity: int = 0
    cache_usage_ratio: float = 0.0
    num_running: int = 0
    num_waiting: int = 0
    num_preempted: int = 0
    num_waiting_tokens: int = 0
    swapped_bytes: int = 0
    slots_leaked: int = 0
    slots_reclaimed: int = 0
    audits: int = 0
    last_leak_time_s: float = 0.0
    last_leak: str = ""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    nonfinite: int = 0
    finished: dict[str, int] = {}
    graph_replays: dict[int, int] = {}
    graph_padding_rows: int = 0
    step_duration_s: dict[str, Histogram] = {}
    step_tokens: Histogram | None = None
    batch_rows: Histogram | None = None
    last_step_time_s: float = 0.0
    num_steps: int = 0
