/* Attention of one query a row: see attention.h. A unit of work is one kv head of one row.
 *
 * All query heads of the kv head take in a tile while it is in the cache; a thread takes what it has of a row at once.
 */
#include "attention.h"

/* Tokens are rows here. */
struct attention_decode_call {
    struct attention attention;
    const int32_t *table_rows;
    const int32_t *positions;
};

struct decode {
    const struct attention *op;
    const int32_t *table_rows;
    const int32_t *positions;
    size_t tile_width; /* block_size, rounded up to whole lanes */
    size_t running_floats;
    size_t scratch_floats;
    float *scratch; /* of each thread: scores of a kv head's query heads, then running softmaxes of a row's */
};

/* scores[key] = scale * (q . keys + key * stride) for num_keys keys; whole vectors are written. */
static void compute_scores(const float *q, const float *keys, size_t stride, size_t num_keys, size_t head_size,
                           float scale, float *scores)
{
    for (size_t first = 0; first < num_keys; first += WIDTH) {
        struct sum sums[WIDTH];
#pragma GCC unroll 16
        for (size_t i = 0; i < WIDTH; i++) /* beyond the last key: that key again, which nobody reads */
            sums[i] = add_products((struct sum){0}, q, keys + min_size(first + i, num_keys - 1) * stride, head_size);
        store(scores + first, totals(sums) * scale);
    }
}

/* One kv head's tile for its query heads, whose running softmaxes stand at running. */
static void take_tile(const struct decode *decode, const float *q, size_t num_keys, const float *keys,
                      const float *values, float *scores, float *running)
{
    const struct attention *op = decode->op;
    size_t group = op->num_heads / op->num_kv_heads;
    for (size_t head = 0; head < group; head++) {
        float *head_scores = scores + head * decode->tile_width;
        compute_scores(q + head * op->head_size, keys, key_stride(op), num_keys, op->head_size, op->scale,
                       head_scores);
        take_scores(running + head * decode->running_floats, head_scores, num_keys, op->head_size);
    }
    add_values(running, decode->running_floats, scores, decode->tile_width, group, num_keys, values, key_stride(op),
               op->head_size);
}

/* The kv heads [first, end) of a row, tile by tile, so that a block is read from its one end to the other. */
static void attend(const struct decode *decode, size_t row, size_t first, size_t end, float *scratch)
{
    const struct attention *op = decode->op;
    size_t group = op->num_heads / op->num_kv_heads, num_heads = (end - first) * group;
    size_t table_row = (size_t)decode->table_rows[row], num_positions = (size_t)decode->positions[row] + 1;
    float *scores = scratch, *running = scratch + group * decode->tile_width;
    const float *q = op->q + row * op->q_stride + first * group * op->head_size;
    for (size_t head = 0; head < num_heads; head++)
        start_softmax(running + head * decode->running_floats, op->head_size);
    for (size_t tile = 0; tile * op->block_size < num_positions; tile++) {
        size_t num_keys = min_size(op->block_size, num_positions - tile * op->block_size);
        for (size_t kv_head = first; kv_head < end; kv_head++) {
            size_t head = (kv_head - first) * group;
            take_tile(decode, q + head * op->head_size, num_keys,
                      tile_start(op, op->k_cache, table_row, tile, kv_head),
                      tile_start(op, op->v_cache, table_row, tile, kv_head), scores,
                      running + head * decode->running_floats);
        }
    }
    float *out = op->out + (row * op->num_heads + first * group) * op->head_size;
    for (size_t head = 0; head < num_heads; head++)
        finish_softmax(running + head * decode->running_floats, out + head * op->head_size, op->head_size);
}

static void attend_units(const void *argument, size_t begin, size_t end, size_t thread)
{
    const struct decode *decode = argument;
    const struct attention *op = decode->op;
    size_t head_floats = op->num_heads / op->num_kv_heads * op->head_size;
    for (size_t unit = begin, num_units; unit < end; unit += num_units) {
        size_t row = unit / op->num_kv_heads, kv_head = unit % op->num_kv_heads;
        num_units = min_size(end - unit, op->num_kv_heads - kv_head);
        if (decode->table_rows[row] == 0)
            memset(op->out + unit * head_floats, 0, num_units * head_floats * sizeof(float));
        else
            attend(decode, row, kv_head, kv_head + num_units, decode->scratch + thread * decode->scratch_floats);
    }
}

EXPORT int KERNEL(attention_decode)(struct pool *pool, const struct attention_decode_call *call)
{
    const struct attention *op = &call->attention;
    const int32_t *table_rows = call->table_rows, *positions = call->positions;
    size_t num_keys = 0;
    for (size_t row = 0; row < op->num_tokens; row++) {
        if (table_rows[row] == 0)
            continue;
        enum status status = check_table_row(op, table_rows[row], (int64_t)positions[row] + 1);
        if (status != OK)
            return status;
        num_keys += (size_t)positions[row] + 1;
    }
    size_t tile_width = divide_up(op->block_size, WIDTH) * WIDTH;
    size_t running_floats = running_size(op->head_size);
    size_t scratch_floats = op->num_heads / op->num_kv_heads * tile_width + op->num_heads * running_floats;
    scratch_floats = divide_up(scratch_floats, SUM_LANES) * SUM_LANES;
    float *scratch = pool_scratch(pool, scratch_floats * pool_num_threads(pool));
    if (scratch == NULL)
        return OUT_OF_MEMORY;
    struct decode decode = {op, table_rows, positions, tile_width, running_floats, scratch_floats, scratch};
    size_t cost = divide_up(num_keys, max_size(op->num_tokens, 1)) * op->head_size *
                  (op->num_heads / op->num_kv_heads);
    pool_run(pool, op->num_tokens * op->num_kv_heads, grain_for(cost), attend_units, &decode);
    return OK;
}
