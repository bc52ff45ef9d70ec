"""`Pool`: the threads and scratch memory of one `CpuOps`, and the calls that use them.

Owns the C pool and turns the statuses of C calls into exceptions. It knows no op's arguments.
"""

import weakref

from mambad.kernels.cpu.library import Library, LibraryError

_OUT_OF_MEMORY = 1
# What the other statuses of kernel.h mean.
_FAULTS = {
    2: "starts does not cut the tokens into chunks of 1 to 64",
    3: "a slot, table row or position is out of range",
    4: "a position or block is beyond the block table or the cache",
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

    def call(self, op: str, *arguments: object) -> None:
        """Call an op of the library with the pool and `arguments`.

        Raises:
            ValueError: an index among the arguments is out of range; nothing has been changed.
            MemoryError: no scratch memory; nothing has been changed.
            RuntimeError: the pool is closed.
        """
        status = self.library.ops[op](self.address(), *arguments)
        if status == _OUT_OF_MEMORY:
            raise MemoryError(f"{op} found no memory for its scratch")
        if status != 0:
            raise ValueError(f"{op}: {_FAULTS[status]}")
