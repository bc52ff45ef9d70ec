"""Recorded calls of ops, repeated by one call of C: see program.c and recording.py."""

from collections.abc import Callable
from ctypes import Structure, addressof, byref, c_size_t, c_uint64, c_void_p, cast

from mambad.kernels.cpu.pool import Pool
from mambad.kernels.cpu.recording import Recording


class _RecordedCall(Structure):
    """`struct recorded_call` of program.c."""

    _fields_ = (("op", c_void_p), ("call", c_void_p))


class _Program(Structure):
    """`struct program` of program.c."""

    _fields_ = (
        ("num_calls", c_size_t),
        ("calls", c_void_p),
        ("progress", c_void_p),
        ("nanoseconds", c_void_p),
        ("num_done", c_size_t),
    )


class CpuProgram:
    """What was recorded, ready to be run. The tensors that its calls name must outlive it.

    Args:
        pool: where the calls were recorded.
        recording: a finished recording.
        progress_address: of a 64-bit number in which calls are counted; None counts nowhere.

    Attributes:
        num_calls: how many.
        num_bytes: memory of the outputs.
    """

    def __init__(self, pool: Pool, recording: Recording, progress_address: int | None) -> None:
        self.num_calls = len(recording.calls)
        self.num_bytes = recording.arena.num_bytes
        self._pool = pool
        self._recording = recording
        self._calls = (_RecordedCall * self.num_calls)(
            *(
                _RecordedCall(_address(pool.library.ops[name]), addressof(call))
                for name, call in recording.calls
            )
        )
        self._max_rows = min(c_size_t.from_address(addressof(call)).value for _, call in recording.calls)
        self._nanoseconds = (c_uint64 * self.num_calls)()
        self._program = _Program(self.num_calls, addressof(self._calls), progress_address)

    def run(self, num_rows: int) -> None:
        """Implement `Program.run`."""
        assert 0 <= num_rows <= self._max_rows, f"{num_rows} rows, recorded for {self._max_rows}"
        status = self._pool.library.run_program(self._pool.address(), byref(self._program), num_rows)
        if status != 0:
            self._pool.complain(self._recording.calls[self._program.num_done][0], status)

    def run_timed(self, num_rows: int) -> list[float]:
        """Implement `Program.run_timed`."""
        self._program.nanoseconds = addressof(self._nanoseconds)
        try:
            self.run(num_rows)
        finally:
            self._program.nanoseconds = None
        return [nanoseconds * 1e-9 for nanoseconds in self._nanoseconds]


def _address(function: Callable[..., int]) -> int | None:
    return cast(function, c_void_p).value  # type: ignore[arg-type]
