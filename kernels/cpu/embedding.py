"""Embedding tables on the C library."""

import torch
from torch import Tensor

from mambad.kernels.cpu.arguments import check_dims, whole
from mambad.kernels.cpu.pool import Pool


def embed_table(pool: Pool, table: Tensor, token_ids: Tensor, multiplier: float) -> Tensor:
    """Implement `Ops.embed` for a table that is a tensor."""
    check_dims("table", table, 2)
    check_dims("token_ids", token_ids, 1)
    num_rows, (num_tokens, width) = token_ids.shape[0], table.shape
    is_bfloat16 = table.dtype is torch.bfloat16
    table = whole("table", table, (num_tokens, width), torch.bfloat16 if is_bfloat16 else torch.float32)
    token_ids = whole("token_ids", token_ids, (num_rows,), torch.int64)
    out = pool.new((num_rows, width))
    sources = (token_ids.data_ptr(), table.data_ptr())
    pool.call("embed_table", num_rows, *sources, out.data_ptr(), num_tokens, width, multiplier, is_bfloat16)
    return out
