"""Paged attention: blocks in any order, shared or poisoned; whole == split; decode rows alone == batched."""

from dataclasses import dataclass
from itertools import pairwise

import kernels_oracle
import pytest
import torch
from kernels_cases import in_float64, inside_nan, int32, relative_error, same_bytes
from torch import Tensor

from mambad.kernels.ops import Ops

HEAD_DIM = 24
SCALE = 0.2
CUTS = (0, 64, 65, 67, 131, 195, 259, 300)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's queries, keys and values: q (n, Hq, Dh), k and v (n, Hkv, Dh)."""

    q: Tensor
    k: Tensor
    v: Tensor


@dataclass(frozen=True, slots=True)
class Cache:
    """Poisoned blocks and a block table whose rows 1.. hold num_columns permuted blocks each."""

    k: Tensor
    v: Tensor
    table: Tensor

    @property
    def block_size(self) -> int:
        return self.k.shape[1]


def make_prompt(num_tokens: int, num_heads: int = 4, num_kv_heads: int = 2, seed: int = 0) -> Prompt:
    generator = torch.Generator().manual_seed(seed)
    heads = (num_heads, num_kv_heads, num_kv_heads)
    return Prompt(*(torch.randn(num_tokens, count, HEAD_DIM, generator=generator) for count in heads))


def make_cache(
    block_size: int, num_rows: int, num_columns: int, num_kv_heads: int = 2, seed: int = 0
) -> Cache:
    num_blocks = num_rows * num_columns
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.full((2, num_blocks + 1, block_size, num_kv_heads, HEAD_DIM), torch.nan).unbind()
    table = torch.zeros(num_rows + 1, num_columns, dtype=torch.int32)
    table[1:] = 1 + torch.randperm(num_blocks, generator=generator).view(num_rows, num_columns)
    return Cache(k, v, table)


def write(ops: Ops, cache: Cache, prompt: Prompt, row: int, start: int, end: int) -> None:
    positions = torch.arange(start, end, dtype=torch.int32)
    rows = torch.full_like(positions, row)
    ops.kv_write(prompt.k[start:end], prompt.v[start:end], cache.k, cache.v, positions, cache.table, rows)


def prefill(ops: Ops, cache: Cache, prompt: Prompt, row: int, cuts: tuple[int, ...]) -> Tensor:
    """Write and attend over tokens [cuts[0], cuts[-1]) of prompt in one call, one chunk between two cuts."""
    write(ops, cache, prompt, row, cuts[0], cuts[-1])
    chunk_rows = torch.full((len(cuts) - 1,), row, dtype=torch.int32)
    starts = int32(*(cut - cuts[0] for cut in cuts))
    q = prompt.q[cuts[0] : cuts[-1]].clone()
    return ops.attention_prefill(
        q, cache.k, cache.v, cache.table, chunk_rows, int32(*cuts[:-1]), starts, SCALE
    )


def oracle(prompt: Prompt, scale: float = SCALE) -> Tensor:
    return kernels_oracle.attention(*in_float64((prompt.q, prompt.k, prompt.v)), 0, scale)


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (4, 2), (4, 1), (1, 1)])
def test_prefill_agrees_with_float64(ops: Ops, num_heads: int, num_kv_heads: int, block_size: int) -> None:
    prompt = make_prompt(150, num_heads, num_kv_heads)
    cache = make_cache(block_size, 1, 160 // block_size, num_kv_heads)
    output = prefill(ops, cache, prompt, 1, (0, 64, 65, 67, 131, 150))
    assert relative_error(output, oracle(prompt)) < 1e-5
    assert output.is_contiguous()


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (4, 2), (4, 1)])
def test_whole_prompt_equals_every_split_at_cuts_bit_for_bit(
    ops: Ops, num_heads: int, num_kv_heads: int, block_size: int
) -> None:
    prompt = make_prompt(300, num_heads, num_kv_heads)
    whole = prefill(ops, make_cache(block_size, 1, 80, num_kv_heads), prompt, 1, CUTS)
    for call_ends in ((1, 2, 3, 4, 5, 6), (1,), (3,), (6,), (2, 5), (1, 4, 6), (3, 4)):
        cache = make_cache(block_size, 1, 80, num_kv_heads, seed=len(call_ends))
        bounds = (0, *call_ends, len(CUTS) - 1)
        outputs = [prefill(ops, cache, prompt, 1, CUTS[a : b + 1]) for a, b in pairwise(bounds)]
        assert same_bytes(torch.cat(outputs), whole), call_ends


def test_long_prompt_equals_its_split_bit_for_bit(ops: Ops) -> None:
    prompt = make_prompt(1600)
    cuts = tuple(range(0, 1601, 64))
    whole = prefill(ops, make_cache(16, 1, 100), prompt, 1, cuts)
    cache = make_cache(16, 1, 100, seed=1)
    outputs = [prefill(ops, cache, prompt, 1, cuts[a : b + 1]) for a, b in ((0, 7), (7, 24), (24, 25))]
    assert same_bytes(torch.cat(outputs), whole)


def test_chunk_alone_equals_chunk_among_other_requests_bit_for_bit(ops: Ops) -> None:
    lengths = (130, 3, 64, 17)
    prompts = [make_prompt(length, seed=length) for length in lengths]
    cache = make_cache(4, 4, 40)
    alone = []
    for row, prompt in enumerate(prompts, 1):
        cuts = (0, *range(64, prompt.q.shape[0], 64), prompt.q.shape[0])
        alone.append(prefill(ops, cache, prompt, row, cuts)[cuts[-2] :])
    last = [(length - 1) // 64 * 64 for length in lengths]
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
        q = torch.cat([prompts[i].q[last[i] :] for i in order])
        starts = [0]
        for i in order:
            starts.append(starts[-1] + lengths[i] - last[i])
        rows, positions = int32(*(i + 1 for i in order)), int32(*(last[i] for i in order))
        output = ops.attention_prefill(
            q, cache.k, cache.v, cache.table, rows, positions, int32(*starts), SCALE
        )
        assert same_bytes(output, torch.cat([alone[i] for i in order]))


def test_prefill_through_shared_blocks_equals_prefill_through_own_ones_bit_for_bit(ops: Ops) -> None:
    prompt = make_prompt(100)
    cache = make_cache(16, 2, 7)
    expected = prefill(ops, cache, prompt, 1, (0, 64, 100))
    cache.table[2, :4] = cache.table[1, :4]
    output = prefill(ops, cache, prompt, 2, (64, 100))
    assert same_bytes(output, expected[64:])


def test_large_scores_do_not_overflow(ops: Ops) -> None:
    prompt = make_prompt(20)
    loud = Prompt(prompt.q * 100, prompt.k * 10, prompt.v)
    cache = make_cache(4, 1, 5)
    output = prefill(ops, cache, loud, 1, (0, 20))
    assert relative_error(output, oracle(loud)) < 1e-3
    where = (cache.k, cache.v, cache.table, int32(1), int32(19))
    decoded = ops.attention_decode(loud.q[19:].clone(), *where, SCALE)
    assert relative_error(decoded, oracle(loud)[19:]) < 1e-3


def test_strided_queries_keys_and_values_give_the_bytes_of_packed_ones(ops: Ops) -> None:
    prompt = make_prompt(30)
    views = Prompt(inside_nan(prompt.q), inside_nan(prompt.k), inside_nan(prompt.v))
    cache, views_cache = make_cache(4, 1, 8), make_cache(4, 1, 8)
    write(ops, cache, prompt, 1, 0, 30)
    write(ops, views_cache, views, 1, 0, 30)
    assert same_bytes(views_cache.k, cache.k)
    assert same_bytes(views_cache.v, cache.v)
    where = (cache.k, cache.v, cache.table)
    outputs = [
        ops.attention_prefill(q, *where, int32(1), int32(0), int32(0, 30), SCALE) for q in (prompt.q, views.q)
    ]
    assert same_bytes(outputs[0], outputs[1])
    positions = torch.arange(30, dtype=torch.int32)
    rows = torch.ones_like(positions)
    outputs = [ops.attention_decode(q, *where, rows, positions, SCALE) for q in (prompt.q, views.q)]
    assert same_bytes(outputs[0], outputs[1])
    assert outputs[1].is_contiguous()


def test_kv_write_puts_each_token_at_its_place_and_nothing_else(ops: Ops) -> None:
    cache = make_cache(4, 2, 3)
    before = cache.k.clone(), cache.v.clone()
    prompt = make_prompt(5)
    places = ((2, 9), (1, 0), (0, 0), (2, 3), (1, 11))
    rows, positions = int32(*(row for row, _ in places)), int32(*(position for _, position in places))
    ops.kv_write(prompt.k, prompt.v, cache.k, cache.v, positions, cache.table, rows)
    for expected, source in zip(before, (prompt.k, prompt.v), strict=True):
        for token, (row, position) in enumerate(places):
            if row != 0:
                expected[cache.table[row, position // 4].item(), position % 4] = source[token]
    assert same_bytes(cache.k, before[0])
    assert same_bytes(cache.v, before[1])


def test_kv_write_skips_a_null_block_of_a_real_row(ops: Ops) -> None:
    cache = make_cache(4, 1, 2)
    cache.table[1, 1] = 0
    write(ops, cache, make_prompt(6), 1, 0, 6)
    assert cache.k[0].isnan().all()
    assert cache.v[0].isnan().all()


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (4, 2), (4, 1), (1, 1)])
def test_decode_agrees_with_float64_and_with_prefill(
    ops: Ops, num_heads: int, num_kv_heads: int, block_size: int
) -> None:
    prompt = make_prompt(80, num_heads, num_kv_heads)
    cache = make_cache(block_size, 1, 80 // block_size, num_kv_heads)
    prefilled = prefill(ops, cache, prompt, 1, (0, 64, 80))
    decode_cache = make_cache(block_size, 1, 80 // block_size, num_kv_heads, seed=1)
    outputs = []
    for position in range(80):
        write(ops, decode_cache, prompt, 1, position, position + 1)
        where = (decode_cache.k, decode_cache.v, decode_cache.table, int32(1), int32(position))
        outputs.append(ops.attention_decode(prompt.q[position : position + 1].clone(), *where, SCALE))
    output = torch.cat(outputs)
    assert relative_error(output, oracle(prompt)) < 1e-5
    assert relative_error(output, prefilled.double()) < 1e-5


@pytest.mark.parametrize("num_rows", [2, 7, 32])
def test_decode_row_alone_equals_row_at_any_position_of_a_batch_bit_for_bit(ops: Ops, num_rows: int) -> None:
    prompt = make_prompt(70)
    cache = make_cache(16, 2, 5)
    write(ops, cache, prompt, 1, 0, 70)
    write(ops, cache, make_prompt(70, seed=1), 2, 0, 70)
    where = (cache.k, cache.v, cache.table)
    alone = ops.attention_decode(prompt.q[61:62].clone(), *where, int32(1), int32(61), SCALE)
    for place in range(num_rows):
        q = prompt.q[:num_rows].clone()
        q[place] = prompt.q[61]
        rows = torch.full((num_rows,), 2, dtype=torch.int32)
        positions = torch.arange(num_rows, dtype=torch.int32)
        rows[place], positions[place] = 1, 61
        output = ops.attention_decode(q, *where, rows, positions, SCALE)
        assert same_bytes(output[place], alone[0])


def test_padding_rows_of_decode_give_zero(ops: Ops) -> None:
    prompt = make_prompt(10)
    cache = make_cache(4, 1, 3)
    write(ops, cache, prompt, 1, 0, 10)
    q = prompt.q[:3].clone()
    q[1] = torch.nan
    where = (cache.k, cache.v, cache.table, int32(1, 0, 1), int32(9, 0, 8))
    output = ops.attention_decode(q, *where, SCALE)
    assert (output[1] == 0).all()
    assert output.isfinite().all()
    assert (output[0] != 0).any()


def test_permuted_blocks_do_not_change_a_bit(ops: Ops) -> None:
    prompt = make_prompt(50)
    results = []
    for seed in (0, 1, 2):
        cache = make_cache(4, 1, 13, seed=seed)
        prefilled = prefill(ops, cache, prompt, 1, (0, 50))
        where = (cache.k, cache.v, cache.table, int32(1), int32(49))
        results.append((prefilled, ops.attention_decode(prompt.q[49:].clone(), *where, SCALE)))
    for prefilled, decoded in results[1:]:
        assert same_bytes(prefilled, results[0][0])
        assert same_bytes(decoded, results[0][1])
