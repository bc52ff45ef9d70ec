"""Draws on the C library."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mambad.kernels.cpu.arguments import check_dims, whole
from mambad.kernels.cpu.pool import Pool
from mambad.kernels.draws import DrawParams


def draw(pool: Pool, logits: Tensor, params: DrawParams) -> NDArray[np.int64]:
    """Implement `Ops.draw`."""
    check_dims("logits", logits, 2)
    num_rows, num_tokens = logits.shape
    logits = whole("logits", logits, (num_rows, num_tokens))
    token_ids = np.empty(num_rows, dtype=np.int64)
    kept = (
        _column("temperatures", params.temperatures, num_rows, np.float32),
        _column("top_k", params.top_k, num_rows, np.int64),
        _column("top_p", params.top_p, num_rows, np.float64),
        _column("min_p", params.min_p, num_rows, np.float32),
        _column("uniforms", params.uniforms, num_rows, np.float64),
    )
    addresses = (column.ctypes.data for column in kept)
    pool.call("draw", num_rows, logits.data_ptr(), num_tokens, *addresses, token_ids.ctypes.data)
    return token_ids


def _column(name: str, column: NDArray[np.generic], num_rows: int, dtype: type) -> NDArray[np.generic]:
    if column.dtype != dtype or column.shape != (num_rows,):
        raise ValueError(f"{name} is {column.dtype} {column.shape}, expected {dtype.__name__} ({num_rows},)")
    return np.ascontiguousarray(column)
