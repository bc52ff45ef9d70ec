"""A counter in shared memory that the engine process bumps whenever it gets anywhere.

The front end reads it without asking: an engine that has work and stands still hangs, however busy or
silent it is. One process writes, the other reads.
"""

import ctypes
import mmap
import os
import struct
from pathlib import Path

_FORMAT = struct.Struct("=Q")


class ProgressCounter:
    """A 64-bit counter behind a file of 8 bytes.

    Args:
        path: the file; made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, _FORMAT.size)
            self._memory = mmap.mmap(descriptor, _FORMAT.size)
        finally:
            os.close(descriptor)

    @property
    def value(self) -> int:
        """How often `bump` was called, by whichever process."""
        value: int = _FORMAT.unpack_from(self._memory)[0]
        return value

    def bump(self) -> None:
        """Count one more. Any thread of the one writing process may call it; a lost count does no harm."""
        _FORMAT.pack_into(self._memory, 0, self.value + 1)

    @property
    def address(self) -> int:
        """Where the number lies, for C code of the writing process that counts in it; valid until `close`."""
        return ctypes.addressof(ctypes.c_uint64.from_buffer(self._memory))

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()
