"""Memory of the state and KV pools: in huge pages where the system has them.

Steps visit slots and blocks all over a pool. In small pages nearly every visit would need an address that
the processor has to look up first.
"""

import contextlib
import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

SMALLEST_BYTES = 4 << 20
"""Less than this is not worth a mapping of its own."""


def empty_pool(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a contiguous tensor whose contents mean nothing; memory is taken where it is touched."""
    num_bytes = math.prod(shape) * dtype.itemsize
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if device.type != "cpu" or advice is None or num_bytes < SMALLEST_BYTES:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel built without them
        memory.madvise(advice)
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))
