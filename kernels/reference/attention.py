"""Attention over paged keys and values, in plain torch (arXiv:2205.14135, algorithm 1, for prefill).

Key tiles are blocks in order of position, so that a chunk's result is the same in whatever calls the
chunks before it were computed.
"""

import torch
from torch import Tensor

from mambad.kernels.reference.slots import fresh


def kv_write(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    positions: Tensor,
    block_table: Tensor,
    table_rows: Tensor,
) -> None:
    """Implement `Ops.kv_write`."""
    block_size = k_cache.shape[1]
    positions = positions.long()
    blocks = block_table[table_rows.long(), positions // block_size].long()
    is_real = blocks != 0
    where = (blocks[is_real], (positions % block_size)[is_real])
    k_cache[where] = k[is_real]
    v_cache[where] = v[is_real]


def _attend_chunk(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, blocks: list[int], first_position: int, scale: float
) -> Tensor:
    """Attend from one chunk q (L, Hq, Dh), whose first token is at first_position, through `blocks`."""
    num_tokens, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    repeat = num_heads // num_kv_heads
    end = first_position + num_tokens
    # Query heads that share a kv head become rows of one matrix: (Hkv, repeat * L, Dh).
    rows = q.view(num_tokens, num_kv_heads, repeat, head_dim).permute(1, 2, 0, 3)
    rows = rows.reshape(num_kv_heads, repeat * num_tokens, head_dim)
    query_positions = torch.arange(first_position, end, device=q.device).repeat(repeat)[:, None]
    maximum = q.new_full((num_kv_heads, repeat * num_tokens, 1), -torch.inf)
    total = torch.zeros_like(maximum)
    weighted = torch.zeros_like(rows)
    for start in range(0, end, block_size):
        # Cut at the chunk's end: what lies behind may be NaN, and 0 * NaN is NaN.
        size = min(block_size, end - start)
        keys = fresh(k_cache[blocks[start // block_size], :size].permute(1, 2, 0))
        values = fresh(v_cache[blocks[start // block_size], :size].permute(1, 0, 2))
        is_later = torch.arange(start, start + size, device=q.device) > query_positions
        scores = ((rows @ keys) * scale).masked_fill(is_later, -torch.inf)
        new_maximum = torch.maximum(maximum, scores.amax(2, keepdim=True))
        weights = torch.exp(scores - new_maximum)
        correction = torch.exp(maximum - new_maximum)
        total = total * correction + weights.sum(2, keepdim=True)
        weighted = weighted * correction + weights @ values
        maximum = new_maximum
    out = (weighted / total).view(num_kv_heads, repeat, num_tokens, head_dim)
    return out.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim)


def attention_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    chunk_rows: Tensor,
    chunk_positions: Tensor,
    starts: Tensor,
    scale: float,
) -> Tensor:
    """Implement `Ops.attention_prefill`."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    bounds = starts.tolist()
    places = zip(chunk_rows.tolist(), chunk_positions.tolist(), strict=True)
    for index, (table_row, first_position) in enumerate(places):
        tokens = slice(bounds[index], bounds[index + 1])
        blocks = block_table[table_row].tolist()
        out[tokens] = _attend_chunk(fresh(q[tokens]), k_cache, v_cache, blocks, first_position, scale)
    return out


def attention_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    table_rows: Tensor,
    positions: Tensor,
    scale: float,
) -> Tensor:
    """Implement `Ops.attention_decode`."""
    block_size = k_cache.shape[1]
    repeat = q.shape[1] // k_cache.shape[2]
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    places = zip(table_rows.tolist(), positions.tolist(), strict=True)
    for row, (table_row, position) in enumerate(places):
        if table_row == 0:
            continue
        blocks = block_table[table_row, : position // block_size + 1].long()
        keys = k_cache[blocks].flatten(0, 1)[: position + 1].permute(1, 2, 0)  # (Hkv, Dh, keys)
        values = v_cache[blocks].flatten(0, 1)[: position + 1].transpose(0, 1)  # (Hkv, keys, Dh)
        query = fresh(q[row]).view(k_cache.shape[2], repeat, q.shape[2])
        scores = (query @ keys) * scale
        weights = torch.exp(scores - scores.amax(2, keepdim=True))
        out[row] = ((weights @ values) / weights.sum(2, keepdim=True)).view(q.shape[1:])
    return out
