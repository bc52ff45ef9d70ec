"""A stop-watch around the ops: calls, time and bytes of every kernel. For `bench offline --profile` only.

Counts the bytes that have to come from memory whatever the implementation: packed weights and parameters,
recurrent state read and written, cached keys and values read. Inputs and outputs of an op are not counted:
they are small and mostly in cache. It changes nothing about what is computed.
"""

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from mambad.kernels.chunks import Chunks
from mambad.kernels.ops import Ops
from mambad.kernels.program import Program

PARAMETERS = ("weight", "bias", "A", "D", "dt_bias")
STATES = ("conv_state", "ssm_state")
ROWS = ("write_slots", "table_rows", "positions", "k")
"""Arguments of which a program for fewer rows than were recorded looks at the first rows only."""
NOT_TIMED = ("name", "reason", "record", "pack_linear")
OPS = tuple(name for name in vars(Ops) if not name.startswith("_") and name not in NOT_TIMED)


_Result = TypeVar("_Result")
_Call = tuple[str, Mapping[str, Any]]
"""An op's name and its arguments by name."""


@dataclass(slots=True)
class OpRecord:
    """One op's sums.

    Attributes:
        calls: how many.
        seconds: in them.
        num_bytes: weights, states, keys and values that they moved.
    """

    calls: int = 0
    seconds: float = 0.0
    num_bytes: int = 0


@dataclass(slots=True)
class OpProfile:
    """Wraps ops and sums up their calls.

    Attributes:
        records: op → sums; a linear layer's shape is part of its name.
        overhead_s: what the watching itself took, to be taken off the steps' time.
    """

    records: dict[str, OpRecord] = field(default_factory=dict)
    overhead_s: float = 0.0
    _recorded: list[_Call] | None = None

    def reset(self) -> None:
        """Forget everything."""
        self.records.clear()
        self.overhead_s = 0.0

    def wrap(self, ops: Ops) -> Ops:
        """Return the same ops with a stop-watch around each."""
        return cast(Ops, _WatchedOps(ops, self))

    def watch(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, the op called `name`, with a stop-watch around it."""
        names = tuple(inspect.signature(getattr(Ops, name)).parameters)[1:]

        def watched(*values: Any, **named: Any) -> Any:
            start = time.perf_counter()
            result = function(*values, **named)
            end = time.perf_counter()
            arguments = dict(zip(names, values, strict=False)) | named
            if self._recorded is not None:
                self._recorded.append((name, arguments))
            else:
                self._count(name, arguments, end - start)
                self.overhead_s += time.perf_counter() - end
            return result

        return watched

    def record(
        self, ops: Ops, function: Callable[[], _Result], progress_address: int | None
    ) -> tuple[Program, _Result] | None:
        """Record as the ops do; the program's calls are watched whenever it runs."""
        self._recorded = []
        try:
            recorded = ops.record(function, progress_address)
            return recorded and (_WatchedProgram(recorded[0], self._recorded, self), recorded[1])
        finally:
            self._recorded = None

    def take_run(self, calls: Sequence[_Call], seconds: Sequence[float], num_rows: int) -> None:
        """Count the calls of a program that ran for num_rows rows."""
        start = time.perf_counter()
        for (name, arguments), taken in zip(calls, seconds, strict=True):
            self._count(name, _first_rows(arguments, num_rows), taken)
        self.overhead_s += time.perf_counter() - start

    def _count(self, name: str, arguments: Mapping[str, Any], seconds: float) -> None:
        record = self.records.setdefault(_label(name, arguments), OpRecord())
        record.calls += 1
        record.seconds += seconds
        record.num_bytes += moved_bytes(arguments)


class _WatchedOps:
    """The ops with every timed one replaced; the rest is passed through."""

    def __init__(self, ops: Ops, profile: OpProfile) -> None:
        self._ops = ops
        self._profile = profile
        for name in OPS:
            setattr(self, name, profile.watch(name, getattr(ops, name)))

    def record(self, function: Callable[[], _Result], progress_address: int | None = None) -> Any:
        return self._profile.record(self._ops, function, progress_address)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)


class _WatchedProgram:
    """A program that tells the profile about each of its calls."""

    def __init__(self, program: Program, calls: list[_Call], profile: OpProfile) -> None:
        assert program.num_calls == len(calls), "an op is one call"
        self._program = program
        self._calls = calls
        self._profile = profile

    def run(self, num_rows: int) -> None:
        self._profile.take_run(self._calls, self._program.run_timed(num_rows), num_rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)


def _first_rows(arguments: Mapping[str, Any], num_rows: int) -> dict[str, Any]:
    return {name: value[:num_rows] if name in ROWS else value for name, value in arguments.items()}


def moved_bytes(arguments: Mapping[str, Any]) -> int:
    """Return the bytes of weights, states, keys and values that one call has to move, from its arguments."""
    total: int = sum(arguments[name].nbytes for name in PARAMETERS if arguments.get(name) is not None)
    if "packed" in arguments:
        total += arguments["packed"].num_bytes
    for name in STATES:
        if name in arguments:
            total += _state_bytes(arguments[name], arguments)
    if "k_cache" in arguments:
        # Keys and values have the same shape; (NB, block_size, Hkv, Dh).
        cache: Tensor = arguments["k_cache"]
        total += 2 * _cached_tokens(arguments) * cache[0, 0].nbytes
    return total


def _state_bytes(state: Tensor, arguments: Mapping[str, Any]) -> int:
    """Each row's state is read and written once; chunks of one prompt pass it on, so a slot counts once."""
    if "chunks" in arguments:
        chunks: Chunks = arguments["chunks"]
        rows = len(set(chunks.write_slots.tolist()) - {0})
    else:
        rows = int(torch.count_nonzero(arguments["write_slots"]))
    return 2 * rows * state[0].nbytes


def _cached_tokens(arguments: Mapping[str, Any]) -> int:
    """Return how many tokens' keys and values an attention op reads, or `kv_write` writes."""
    if "k" in arguments:
        return int(arguments["k"].shape[0])
    if "starts" in arguments:
        lengths = arguments["starts"].diff()
        return int((arguments["chunk_positions"] + lengths).sum())
    return int(((arguments["positions"] + 1) * (arguments["table_rows"] != 0)).sum())


def _label(name: str, arguments: Mapping[str, Any]) -> str:
    if name != "linear":
        return name
    packed = arguments["packed"]
    return f"linear {packed.num_in} → {packed.num_out}"


def read_bandwidth(num_threads: int, num_bytes: int = 512 << 20, rounds: int = 5) -> float:
    """Return bytes a second that summing up a large array reads here, at best of several rounds.

    Args:
        num_threads: as many as the kernels have.
        num_bytes: far more than the caches hold.
        rounds: how often it is tried.
    """
    data = torch.ones(num_bytes // 4, dtype=torch.float32)
    with _torch_threads(num_threads):
        best = min(_seconds(data.sum) for _ in range(rounds))
    return data.nbytes / best


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
