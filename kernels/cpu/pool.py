"""`Pool`: the threads and scratch memory of one `CpuOps`, and the calls that use them.

Owns the C pool, makes or records calls, and turns the statuses of C calls into exceptions. It knows no op's
arguments.
"""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import torch
from torch import Tensor

from mambad.kernels.cpu.calls import CALLS
from mambad.kernels.cpu.library import Library, LibraryError
from mambad.kernels.cpu.recording import Recording

_OUT_OF_MEMORY = 1
# What the other statuses of kernel.h mean.
_FAULTS = {
    2: "starts does not cut the tokens into chunks of 1 to 64",
    3: "a slot, table row or position is out of range",
    4: "a position or block is beyond the block table or the cache",
    5: "a token id is beyond the embedding",
}


class Pool:
    """Threads of the C library. One call at a time, from any thread.

    Attributes:
        library: the library whose pool this is.

    Raises:
        ValueError: num_threads is not positive.
        LibraryError: the threads can't be started.
    """

    def __init__(self, library: Library, num_threads: int) -> None:
        if num_threads < 1:
            raise ValueError(f"num_threads = {num_threads} is not positive")
        address = library.pool_create(num_threads)
        if not address:
            raise LibraryError(f"{num_threads} threads can't be started")
        self.library = library
        self._address = address
        self._recording: Recording | None = None
        self._finalizer = weakref.finalize(self, library.pool_destroy, address)
        self._finalizer.atexit = False  # a thread may still be in a call when the interpreter ends

    def close(self) -> None:
        """End the threads; no call may be running, and none may follow. Closing twice is harmless."""
        self._finalizer()

    def address(self) -> int:
        """Return the address of the C pool.

        Raises:
            RuntimeError: the pool is closed.
        """
        if not self._finalizer.alive:
            raise RuntimeError("the CPU ops are closed")
        return self._address

    def new(self, shape: Sequence[int]) -> Tensor:
        """Return an uninitialised float32 tensor for the result of the next call."""
        if self._recording is not None:
            return self._recording.arena.new(shape)
        return torch.empty(shape, dtype=torch.float32)

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """Note the calls made inside instead of making them."""
        assert self._recording is None, "a recording is on"
        with Recording() as self._recording:
            try:
                yield self._recording
            finally:
                self._recording = None

    def call(self, op: str, *fields: object) -> None:
        """Call an op of the library with the fields of its structure, in the order of `calls.py`.

        Raises:
            ValueError: an index among the arguments is out of range; nothing has been changed.
            MemoryError: no scratch memory; nothing has been changed.
            RuntimeError: the pool is closed.
        """
        call = CALLS[op](*fields)
        if self._recording is not None:
            self._recording.calls.append((op, call))
            return
        status = self.library.ops[op](self.address(), call)
        if status != 0:
            self.complain(op, status)

    def complain(self, op: str, status: int) -> NoReturn:
        """Raise what `call` raises when an op ends with a status that is not 0."""
        if status == _OUT_OF_MEMORY:
            raise MemoryError(f"{op} found no memory for its scratch")
        raise ValueError(f"{op}: {_FAULTS[status]}")
