/* Attention over cached keys and values: arguments, checks and the running softmax that both ops share.
 *
 * Keys come in tiles of block_size positions, in order; a query's result depends only on the query and on the
 * keys and values it sees, which are added up one after the other (arXiv:2205.14135, algorithm 1).
 */
#ifndef MAMBAD_ATTENTION_H
#define MAMBAD_ATTENTION_H

#include <math.h>

#include "chunks.h"
#include "fold.h"

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

/* Queries and vectors of a value that share loads of values and of weights. */
enum { VALUE_QUERIES = 4, VALUE_VECTORS = 2 };

/* A query's running softmax: the weights' sum in SUM_LANES parts from [TOTALS] on, the largest score so far at
 * [MAXIMUM], and head_size weighted values, in whole vectors, from [WEIGHTED] on. */
enum { TOTALS = 0, MAXIMUM = SUM_LANES, WEIGHTED = 2 * SUM_LANES };

static inline size_t running_size(size_t head_size)
{
    return WEIGHTED + divide_up(head_size, WIDTH) * WIDTH;
}

static inline void start_softmax(float *running, size_t head_size)
{
    memset(running, 0, running_size(head_size) * sizeof(float));
    running[MAXIMUM] = -INFINITY;
}

/* Turns the first num_keys of whole vectors of scores into weights and the others into 0; what was weighted for a
 * smaller maximum is scaled down. */
static inline void take_scores(float *running, float *scores, size_t num_keys, size_t head_size)
{
    for (size_t key = num_keys; key % WIDTH != 0; key++)
        scores[key] = -INFINITY;
    lanes largest = broadcast(running[MAXIMUM]);
    for (size_t key = 0; key < num_keys; key += WIDTH)
        largest = at_least(largest, load(scores + key));
    float maximum = largest_of(largest);
    if (maximum != running[MAXIMUM]) {
        float correction = exp_one(running[MAXIMUM] - maximum);
        running[MAXIMUM] = maximum;
        for (size_t i = 0; i < SUM_LANES; i += WIDTH)
            store(running + TOTALS + i, load(running + TOTALS + i) * correction);
        for (size_t i = WEIGHTED; i < WEIGHTED + head_size; i += WIDTH)
            store(running + i, load(running + i) * correction);
    }
    for (size_t key = 0; key < num_keys; key += WIDTH) {
        lanes weights = exp_lanes(load(scores + key) - maximum);
        store(scores + key, weights);
        float *total_part = running + TOTALS + key % SUM_LANES;
        store(total_part, load(total_part) + weights);
    }
}

/* Adds the weighted values of num_keys keys, in their order, to count lanes (a constant number of vectors, the last
 * one of `width` floats) of num_queries (a constant) running softmaxes. Value i stands at values + i * stride. */
INLINE void add_columns(float *weighted, size_t running_floats, const float *weights, size_t weights_stride,
                        size_t num_queries, size_t num_keys, const float *values, size_t stride, size_t num_vectors,
                        size_t width)
{
    lanes sums[VALUE_QUERIES][VALUE_VECTORS];
    for (size_t query = 0; query < num_queries; query++)
        for (size_t i = 0; i < num_vectors; i++)
            sums[query][i] = load(weighted + query * running_floats + i * WIDTH);
    for (size_t key = 0; key < num_keys; key++) {
        lanes columns[VALUE_VECTORS];
        for (size_t i = 0; i < num_vectors; i++)
            columns[i] = load_first(values + key * stride + i * WIDTH, width);
        for (size_t query = 0; query < num_queries; query++)
            for (size_t i = 0; i < num_vectors; i++)
                sums[query][i] =
                    fused(broadcast(weights[query * weights_stride + key]), columns[i], sums[query][i]);
    }
    for (size_t query = 0; query < num_queries; query++)
        for (size_t i = 0; i < num_vectors; i++)
            store(weighted + query * running_floats + i * WIDTH, sums[query][i]);
}

INLINE void add_values_of(float *running, size_t running_floats, const float *weights, size_t weights_stride,
                          size_t num_queries, size_t num_keys, const float *values, size_t stride, size_t head_size)
{
    size_t i = 0;
    for (; i + VALUE_VECTORS * WIDTH <= head_size; i += VALUE_VECTORS * WIDTH)
        add_columns(running + WEIGHTED + i, running_floats, weights, weights_stride, num_queries, num_keys,
                    values + i, stride, VALUE_VECTORS, WIDTH);
    for (; i < head_size; i += WIDTH)
        add_columns(running + WEIGHTED + i, running_floats, weights, weights_stride, num_queries, num_keys,
                    values + i, stride, 1, min_size(WIDTH, head_size - i));
}

/* Adds the values of num_keys keys, by their weights, to the running softmaxes of num_queries queries. */
static inline void add_values(float *running, size_t running_floats, const float *weights, size_t weights_stride,
                              size_t num_queries, size_t num_keys, const float *values, size_t stride,
                              size_t head_size)
{
    size_t query = 0;
    for (; query + VALUE_QUERIES <= num_queries; query += VALUE_QUERIES)
        add_values_of(running + query * running_floats, running_floats, weights + query * weights_stride,
                      weights_stride, VALUE_QUERIES, num_keys, values, stride, head_size);
    for (; query < num_queries; query++)
        add_values_of(running + query * running_floats, running_floats, weights + query * weights_stride,
                      weights_stride, 1, num_keys, values, stride, head_size);
}

static inline void finish_softmax(const float *running, float *out, size_t head_size)
{
    struct sum totals;
    memcpy(&totals, running + TOTALS, sizeof totals);
    float total_weight = total(totals);
    for (size_t i = 0; i < head_size; i += WIDTH)
        store_first(out + i, load(running + WEIGHTED + i) / total_weight, head_size - i);
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
