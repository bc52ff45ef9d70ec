"""Token ids of one row from the most to the least likely, ties to the lower id.

The order is total, so the first k ids are the same whatever k is asked for and however the sort works.
Only as much is sorted as is asked for. No torch.
"""

import numpy as np
from numpy.typing import NDArray

_LOW_WORD = 0xFFFF_FFFF
_MAX_ID = 0x7FFF_FFFF


def top_ids(values: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Return the ids of the k largest values, largest first: values (V,) without NaN -> (min(k, V),)."""
    num_values = values.shape[0]
    if k >= num_values:
        return rank(values, np.arange(num_values))
    kth_largest = np.partition(values, num_values - k)[num_values - k]
    return rank(values, np.flatnonzero(values >= kth_largest))[:k]


def rank(values: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort distinct ids by `values[id]`, largest first, ties to the lower id: ids (n,) -> (n,).

    Each value and id become one integer whose order is the wanted one: sorting these is several times
    faster than a stable sort of the values.
    """
    # Adding 0 makes -0.0 into 0.0, which compares as equal but has other bits.
    bits = (values[ids] + np.float32(0.0)).view(np.int32).astype(np.int64)
    # Among negative numbers, larger bits mean a smaller value.
    ordered = bits ^ ((bits >> 31) & _MAX_ID)
    keys = (ordered << 32) | (_MAX_ID - ids)
    keys.sort()
    return _MAX_ID - (keys[::-1] & _LOW_WORD)
