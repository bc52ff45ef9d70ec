/* Causal attention of chunks: see attention.h. A unit of work is one query head of one chunk.
 *
 * A tile's keys are transposed once for all queries of the chunk, so that lanes are keys and a score is a sum
 * over the head's dimensions in order. Queries are taken QUERY_BLOCK at a time to share the loads of keys.
 */
#include <stdbool.h>

#include "attention.h"
#include "transpose.h"

enum { QUERY_BLOCK = 8 };

struct attention_prefill_call {
    struct attention attention;
    size_t num_chunks;
    const int32_t *chunk_rows;
    const int32_t *chunk_positions;
    const int32_t *starts;
};

struct prefill {
    const struct attention *op;
    const int32_t *chunk_rows;
    const int32_t *chunk_positions;
    const int32_t *starts;
    size_t tile_width; /* block_size, rounded up to whole lanes */
    size_t running_floats;
    size_t scratch_floats;
    float *scratch; /* of each thread: keys, scores and running softmaxes */
};

/* scores[query][key] = scale * (query . key) for num_queries queries (a constant) and tile_width keys. */
INLINE void compute_scores(const struct prefill *prefill, const float *q, const float *keys, float *scores,
                           size_t num_queries)
{
    const struct attention *op = prefill->op;
    for (size_t key = 0; key < prefill->tile_width; key += WIDTH) {
        lanes sums[QUERY_BLOCK] = {{0}};
        for (size_t i = 0; i < op->head_size; i++) {
            lanes column = load(keys + i * prefill->tile_width + key);
#pragma GCC unroll 8
            for (size_t query = 0; query < num_queries; query++)
                sums[query] = fused(broadcast(q[query * op->q_stride + i]), column, sums[query]);
        }
        for (size_t query = 0; query < num_queries; query++)
            store(scores + query * prefill->tile_width + key, sums[query] * op->scale);
    }
}

/* Queries from one at `position` on take in the tile from first_key on, which at least the last of them sees. */
static void take_scored_tile(const struct prefill *prefill, size_t position, size_t num_queries, size_t first_key,
                             const float *values, float *scores, float *running)
{
    const struct attention *op = prefill->op;
    bool all_see_all = position + 1 >= first_key + op->block_size;
    for (size_t query = 0; query < num_queries; query++) {
        size_t end = position + query + 1, num_keys = min_size(op->block_size, end - min_size(end, first_key));
        float *query_scores = scores + query * prefill->tile_width;
        float *query_running = running + query * prefill->running_floats;
        if (num_keys == 0)
            continue;
        take_scores(query_running, query_scores, num_keys, op->head_size);
        if (!all_see_all)
            add_values(query_running, prefill->running_floats, query_scores, prefill->tile_width, 1, num_keys,
                       values, key_stride(op), op->head_size);
    }
    if (all_see_all)
        add_values(running, prefill->running_floats, scores, prefill->tile_width, num_queries, op->block_size,
                   values, key_stride(op), op->head_size);
}

/* All queries of a chunk, the first at absolute position `position`, take in one tile. */
static void take_tile(const struct prefill *prefill, struct span span, size_t head, size_t position,
                      size_t first_key, const float *values, const float *keys, float *scores, float *running)
{
    const struct attention *op = prefill->op;
    const float *q = op->q + span.first_token * op->q_stride + head * op->head_size;
    for (size_t query = 0, num_queries; query < span.num_tokens; query += num_queries) {
        num_queries = span.num_tokens - query >= QUERY_BLOCK ? QUERY_BLOCK : 1;
        if (position + query + num_queries <= first_key)
            continue;
        if (num_queries == QUERY_BLOCK)
            compute_scores(prefill, q + query * op->q_stride, keys, scores, QUERY_BLOCK);
        else
            compute_scores(prefill, q + query * op->q_stride, keys, scores, 1);
        take_scored_tile(prefill, position + query, num_queries, first_key, values, scores,
                         running + query * prefill->running_floats);
    }
}

static void attend(const struct prefill *prefill, size_t chunk, size_t head, float *scratch)
{
    const struct attention *op = prefill->op;
    struct span span = {.first_token = (size_t)prefill->starts[chunk],
                        .num_tokens = (size_t)(prefill->starts[chunk + 1] - prefill->starts[chunk])};
    size_t table_row = (size_t)prefill->chunk_rows[chunk], position = (size_t)prefill->chunk_positions[chunk];
    size_t kv_head = head / (op->num_heads / op->num_kv_heads), end = position + span.num_tokens;
    float *keys = scratch, *scores = keys + op->head_size * prefill->tile_width;
    float *running = scores + QUERY_BLOCK * prefill->tile_width;
    /* Keys beyond the end give scores that nobody takes in, but let them be numbers. */
    memset(keys, 0, op->head_size * prefill->tile_width * sizeof(float));
    for (size_t i = 0; i < span.num_tokens; i++)
        start_softmax(running + i * prefill->running_floats, op->head_size);
    for (size_t tile = 0; tile * op->block_size < end; tile++) {
        size_t num_keys = min_size(op->block_size, end - tile * op->block_size);
        transpose(tile_start(op, op->k_cache, table_row, tile, kv_head), key_stride(op), keys, prefill->tile_width,
                  num_keys, op->head_size);
        take_tile(prefill, span, head, position, tile * op->block_size,
                  tile_start(op, op->v_cache, table_row, tile, kv_head), keys, scores, running);
    }
    for (size_t i = 0; i < span.num_tokens; i++)
        finish_softmax(running + i * prefill->running_floats,
                       op->out + ((span.first_token + i) * op->num_heads + head) * op->head_size, op->head_size);
}

static void attend_units(const void *argument, size_t begin, size_t end, size_t thread)
{
    const struct prefill *prefill = argument;
    size_t num_heads = prefill->op->num_heads;
    for (size_t unit = begin; unit < end; unit++)
        attend(prefill, unit / num_heads, unit % num_heads, prefill->scratch + thread * prefill->scratch_floats);
}

EXPORT int KERNEL(attention_prefill)(struct pool *pool, const struct attention_prefill_call *call)
{
    const struct attention *op = &call->attention;
    size_t num_chunks = call->num_chunks;
    const int32_t *chunk_rows = call->chunk_rows, *chunk_positions = call->chunk_positions, *starts = call->starts;
    enum status status = check_starts(starts, num_chunks, op->num_tokens);
    for (size_t i = 0; status == OK && i < num_chunks; i++) {
        int64_t end = (int64_t)chunk_positions[i] + starts[i + 1] - starts[i];
        status = chunk_positions[i] < 0 ? BAD_SLOT : check_table_row(op, chunk_rows[i], end);
    }
    if (status != OK)
        return status;
    size_t tile_width = divide_up(op->block_size, WIDTH) * WIDTH, running_floats = running_size(op->head_size);
    size_t scratch_floats =
        (op->head_size + QUERY_BLOCK) * tile_width + MAX_CHUNK_TOKENS * running_floats + SUM_LANES;
    float *scratch = pool_scratch(pool, scratch_floats * pool_num_threads(pool));
    if (scratch == NULL)
        return OUT_OF_MEMORY;
    struct prefill prefill = {op,         chunk_rows,     chunk_positions, starts,
                              tile_width, running_floats, scratch_floats,  scratch};
    pool_run(pool, num_chunks * op->num_heads, 1, attend_units, &prefill);
    return OK;
}
