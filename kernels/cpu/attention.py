"""Attention over cached keys and values on the C library."""

from torch import Tensor

from mambad.kernels.cpu.arguments import check_dims, check_divides, in_place, indices, rows
from mambad.kernels.cpu.attention_calls import Attention
from mambad.kernels.cpu.pool import Pool

Cache = tuple[Tensor, Tensor, Tensor]
"""k_cache, v_cache and block_table."""


def kv_write(pool: Pool, k: Tensor, v: Tensor, cache: Cache, positions: Tensor, table_rows: Tensor) -> None:
    """Implement `Ops.kv_write`."""
    k_cache, v_cache, table = _checked(cache)
    num_blocks, block_size, num_kv_heads, head_size = k_cache.shape
    num_tokens = k.shape[0]
    shape = (num_tokens, num_kv_heads, head_size)
    k, v = rows("k", k, shape), rows("v", v, shape)
    positions = indices("positions", positions, (num_tokens,))
    table_rows = indices("table_rows", table_rows, (num_tokens,))
    pool.call(
        "kv_write",
        num_tokens,
        *(k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0), k_cache.data_ptr(), v_cache.data_ptr()),
        *(positions.data_ptr(), table.data_ptr(), table_rows.data_ptr()),
        *(num_kv_heads * head_size, num_blocks, block_size, *table.shape),
    )


def attention_prefill(
    pool: Pool, q: Tensor, cache: Cache, chunks: tuple[Tensor, Tensor, Tensor], scale: float
) -> Tensor:
    """Implement `Ops.attention_prefill`; `chunks` is (chunk_rows, chunk_positions, starts)."""
    chunk_rows, chunk_positions, starts = chunks
    count = chunk_rows.shape[0]
    chunk_rows = indices("chunk_rows", chunk_rows, (count,))
    chunk_positions = indices("chunk_positions", chunk_positions, (count,))
    starts = indices("starts", starts, (count + 1,))
    where = (count, chunk_rows.data_ptr(), chunk_positions.data_ptr(), starts.data_ptr())
    return _attend(pool, "attention_prefill", q, cache, scale, *where)


def attention_decode(
    pool: Pool, q: Tensor, cache: Cache, table_rows: Tensor, positions: Tensor, scale: float
) -> Tensor:
    """Implement `Ops.attention_decode`."""
    shape = (q.shape[0],)
    table_rows = indices("table_rows", table_rows, shape)
    positions = indices("positions", positions, shape)
    return _attend(pool, "attention_decode", q, cache, scale, table_rows.data_ptr(), positions.data_ptr())


def _attend(pool: Pool, op: str, q: Tensor, cache: Cache, scale: float, *where: object) -> Tensor:
    k_cache, v_cache, table = _checked(cache)
    check_dims("q", q, 3)
    num_tokens, num_heads, _ = q.shape
    num_blocks, block_size, num_kv_heads, head_size = k_cache.shape
    check_divides("number of kv heads", num_kv_heads, "number of query heads", num_heads)
    shape = (num_tokens, num_heads, head_size)
    q = rows("q", q, shape)
    out = pool.new(shape)
    attention = Attention(
        *(num_tokens, q.data_ptr(), q.stride(0)),
        *(k_cache.data_ptr(), v_cache.data_ptr(), table.data_ptr(), out.data_ptr()),
        *(num_heads, head_size, num_blocks, block_size, num_kv_heads, *table.shape, scale),
    )
    pool.call(op, attention, *where)
    return out


def _checked(cache: Cache) -> Cache:
    k_cache, v_cache, block_table = cache
    check_dims("k_cache", k_cache, 4)
    check_dims("block_table", block_table, 2)
    in_place("k_cache", k_cache, k_cache.shape)
    in_place("v_cache", v_cache, k_cache.shape)
    return k_cache, v_cache, indices("block_table", block_table, block_table.shape)
