"""What crosses between the front end and the engine process: frozen values, no torch.

One message a direction and a step at most; ints, floats, strings and bytes only.
"""

from typing import Any

import msgspec

from mambad.engine.config import EngineConfig
from mambad.engine.outputs import EngineStats, RequestOutput
from mambad.engine.request import Submission


class WorkerStart(msgspec.Struct, frozen=True):
    """First line on the worker's standard input.

    Attributes:
        endpoint: the zmq address to connect to.
        progress_path: file behind the progress counter.
        config: what to serve.
        rank: which of `config.data_parallel_size` this process is.
        rendezvous: file by which the ranks meet when they work in lockstep.
    """

    endpoint: str
    progress_path: str
    config: EngineConfig
    rank: int = 0
    rendezvous: str | None = None


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What start-up found and computed. Sizes in bytes, `plan` in lines for people.

    `has_grammars` says whether answers can be constrained: the bytes of the tokens must be known.
    """

    model: str
    family: str
    num_parameters: int
    dtype: str
    state_dtype: str
    quantization: str
    device: str
    kernels: str
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    num_slots: int
    num_blocks: int
    block_size: int
    slot_bytes: int
    block_bytes: int
    weight_bytes: int
    num_threads: int
    runs_ahead: bool
    eos_token_ids: tuple[int, ...]
    load_duration_s: float
    plan: tuple[str, ...]
    has_grammars: bool = False


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Requests to put in line, in order.

    In lockstep it is a call as well, see `Call`. Were the call a message of its own, the ranks could hear it,
    agree that nobody has work and leave, before the request comes.
    """

    submissions: tuple[Submission, ...]
    call: int = 0


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for this request any more; `reason` is a finish reason of the metrics."""

    request_id: str
    reason: str


class Finish(msgspec.Struct, frozen=True, tag=True):
    """A stop string was found after `num_kept_tokens` output tokens."""

    request_id: str
    num_kept_tokens: int


class Query(msgspec.Struct, frozen=True, tag=True):
    """Asks for a state report; the options are those of `EngineReport.state`."""

    query_id: int
    options: dict[str, Any]


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End every request with the reason `shutdown`."""

    message: str


class Exit(msgspec.Struct, frozen=True, tag=True):
    """Leave the main loop and end the process."""


class Inject(msgspec.Struct, frozen=True, tag=True):
    """Orders a fault; answered by a `Reply` with the faults that are possible. See `mambad.engine.faults`."""

    query_id: int
    name: str
    times: int
    duration_ms: int


class Call(msgspec.Struct, frozen=True, tag=True):
    """Calls every rank to work in lockstep, because one of them has a request; see `lockstep`."""

    number: int


class SetLogLevel(msgspec.Struct, frozen=True, tag=True):
    """Log from this level on; see `mambad.engine.logs`."""

    level: str


ToEngine = Call | Submit | Abort | Finish | Query | Shutdown | Exit | Inject | SetLogLevel


class Progress(msgspec.Struct, frozen=True, tag=True):
    """How far start-up has come with `what`: `done` of `total`."""

    what: str
    done: int
    total: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine takes requests."""

    info: EngineInfo


class StepOutput(msgspec.Struct, frozen=True, tag=True):
    """What a step gave."""

    outputs: tuple[RequestOutput, ...]


class Stats(msgspec.Struct, frozen=True, tag=True):
    """The engine's report, at least once a second."""

    stats: EngineStats


class Reply(msgspec.Struct, frozen=True, tag=True):
    """Answer to a `Query`."""

    query_id: int
    report: dict[str, Any]


class Fatal(msgspec.Struct, frozen=True, tag=True):
    """The engine can't start or go on. `kind` is `config`, `load` or `engine`."""

    kind: str
    message: str


FromEngine = Progress | Ready | StepOutput | Stats | Reply | Fatal

encode = msgspec.msgpack.encode
to_engine_decoder = msgspec.msgpack.Decoder(ToEngine)
from_engine_decoder = msgspec.msgpack.Decoder(FromEngine)
