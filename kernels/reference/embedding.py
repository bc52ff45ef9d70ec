"""Embedding tables in plain torch."""

import torch
from torch import Tensor

from mambad.kernels.ops import PackedLinear
from mambad.kernels.reference.linear import embed_packed


def embed(table: Tensor | PackedLinear, token_ids: Tensor, multiplier: float) -> Tensor:
    """Implement `Ops.embed`; the product is exact to the last bit in every place of a tensor."""
    if not isinstance(table, Tensor):
        return embed_packed(table, token_ids, multiplier)
    return torch.index_select(table, 0, token_ids).to(torch.float32) * multiplier
