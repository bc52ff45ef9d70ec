"""Notes calls of ops instead of making them, and gives their outputs a place to lie.

While a `Recording` is on, outputs lie in buffers that it owns. A buffer is used again once nobody holds the
tensor in it any more, as an allocator would have done had the ops computed. Whatever computes without being
one of these ops is refused, because repeating the calls would not repeat it.
"""

import math
import weakref
from collections.abc import Sequence
from ctypes import Structure
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ALIGNMENT = 64
_FLOAT_BYTES = 4


class Arena:
    """Buffers for the outputs of recorded ops.

    Attributes:
        num_bytes: of all buffers.
    """

    def __init__(self) -> None:
        self._free: list[NDArray[np.float32]] = []
        self.num_bytes = 0

    def new(self, shape: Sequence[int]) -> Tensor:
        """Return a float32 tensor in a buffer that is free again once nobody holds the tensor or a view."""
        size = math.prod(shape)
        buffer = self._take(size)
        # torch holds the array, and so the buffer, as long as the tensor's storage is there.
        array = buffer[:size].reshape(tuple(shape))
        weakref.finalize(array, self._free.append, buffer)
        return torch.from_numpy(array)

    def _take(self, size: int) -> NDArray[np.float32]:
        places = [place for place, buffer in enumerate(self._free) if len(buffer) >= size]
        if not places:
            return self._allocate(size)
        return self._free.pop(min(places, key=lambda place: len(self._free[place])))

    def _allocate(self, size: int) -> NDArray[np.float32]:
        num_bytes = -(-size * _FLOAT_BYTES // _ALIGNMENT) * _ALIGNMENT
        self.num_bytes += num_bytes
        memory = np.zeros(num_bytes + _ALIGNMENT, dtype=np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        return memory[start : start + num_bytes].view(np.float32)


class Recording:
    """The calls that are made while it is on, in order. A context manager, for one thread.

    Attributes:
        calls: names of ops and their structures.
        arena: where their outputs lie.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, Structure]] = []
        self.arena = Arena()
        self._views_only: Any = _ViewsOnly()  # type: ignore[no-untyped-call]

    def __enter__(self) -> "Recording":
        self._views_only.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._views_only.__exit__(*exception)


class _ViewsOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses every operation of torch that is not a view."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            raise RuntimeError(f"{func} computes and can't be recorded: only our ops and views can")
        return func(*args, **(kwargs or {}))
