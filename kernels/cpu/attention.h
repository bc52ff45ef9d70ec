/* Attention over cached keys and values: arguments, checks and the running softmax that both ops share.
 *
 * Keys come in tiles of block_size positions, in order; a query's result depends only on the query and on the
 * keys and values it sees, which are added up one after the other (arXiv:2205.14135, algorithm 1).
 */
#ifndef MAMBAD_ATTENTION_H
#define MAMBAD_ATTENTION_H

#include <math.h>

#include "chunks.h"
#include "functions.h"

/* attention_calls.py mirrors the fields' order. */
struct attention {
    size_t num_tokens;
    const float *q; /* (num_tokens, num_heads, head_size), tokens q_stride apart */
    size_t q_stride;
    const float *k_cache; /* (num_blocks, block_size, num_kv_heads, head_size) */
    const float *v_cache;
    const int32_t *block_table; /* (num_table_rows, num_table_columns) */
    float *out;                 /* (num_tokens, num_heads, head_size) */
    size_t num_heads;
    size_t head_size;
    size_t num_blocks;
    size_t block_size;
    size_t num_kv_heads;
    size_t num_table_rows;
    size_t num_table_columns;
    float scale;
};

/* A query's running softmax: floats [MAXIMUM], [TOTAL] and from [WEIGHTED] on head_size weighted values. */
enum { MAXIMUM = 0, TOTAL = 1, WEIGHTED = 2 };

static inline void start_softmax(float *running, size_t head_size)
{
    memset(running, 0, (WEIGHTED + head_size) * sizeof(float));
    running[MAXIMUM] = -INFINITY;
}

/* Takes in num_keys scores, which become weights, and their values; value i stands at values + i * stride. */
static inline void take_scores(float *running, float *scores, size_t num_keys, const float *values, size_t stride,
                               size_t head_size)
{
    float maximum = running[MAXIMUM];
    for (size_t key = 0; key < num_keys; key++)
        maximum = scores[key] > maximum ? scores[key] : maximum;
    float correction = exp_one(running[MAXIMUM] - maximum);
    for (size_t key = 0; key < num_keys; key += WIDTH)
        store_first(scores + key, exp_lanes(load_first(scores + key, num_keys - key) - maximum), num_keys - key);
    float total = running[TOTAL] * correction;
    for (size_t key = 0; key < num_keys; key++)
        total += scores[key];
    running[MAXIMUM] = maximum;
    running[TOTAL] = total;
    float *weighted = running + WEIGHTED;
    for (size_t i = 0; i < head_size; i += WIDTH) {
        size_t count = head_size - i;
        lanes sum = load_first(weighted + i, count) * correction;
        for (size_t key = 0; key < num_keys; key++)
            sum = fused(broadcast(scores[key]), load_first(values + key * stride + i, count), sum);
        store_first(weighted + i, sum, count);
    }
}

static inline void finish_softmax(const float *running, float *out, size_t head_size)
{
    for (size_t i = 0; i < head_size; i += WIDTH)
        store_first(out + i, load_first(running + WEIGHTED + i, head_size - i) / running[TOTAL], head_size - i);
}

/* Floats from one key or value of a block to the next. */
static inline size_t key_stride(const struct attention *op)
{
    return op->num_kv_heads * op->head_size;
}

/* Where a tile's keys (in k_cache) or values (in v_cache) for one kv head begin. */
static inline const float *tile_start(const struct attention *op, const float *cache, size_t table_row, size_t tile,
                                      size_t kv_head)
{
    size_t block = (size_t)op->block_table[table_row * op->num_table_columns + tile];
    return cache + (block * op->block_size * op->num_kv_heads + kv_head) * op->head_size;
}

/* Whether a table row exists and holds existing blocks for positions [0, num_positions). */
static inline enum status check_table_row(const struct attention *op, int32_t table_row, int64_t num_positions)
{
    if (!is_index(table_row, op->num_table_rows) || num_positions < 1)
        return BAD_SLOT;
    size_t num_tiles = divide_up((size_t)num_positions, op->block_size);
    if (num_tiles > op->num_table_columns)
        return BAD_BLOCK;
    const int32_t *blocks = op->block_table + (size_t)table_row * op->num_table_columns;
    for (size_t tile = 0; tile < num_tiles; tile++)
        if (!is_index(blocks[tile], op->num_blocks))
            return BAD_BLOCK;
    return OK;
}

#endif
