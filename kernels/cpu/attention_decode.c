/* Attention of one query a row: see attention.h. A unit of work is one kv head of one row.
 *
 * All query heads of the kv head take in a tile while it is in the cache.
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
    size_t running_floats;
    size_t scratch_floats;
    float *scratch; /* of each thread: scores, then the running softmaxes of a kv head's query heads */
};

static void attend(const struct decode *decode, size_t row, size_t kv_head, float *scratch)
{
    const struct attention *op = decode->op;
    size_t group = op->num_heads / op->num_kv_heads, first_head = kv_head * group;
    size_t table_row = (size_t)decode->table_rows[row], end = (size_t)decode->positions[row] + 1;
    float *scores = scratch, *running = scratch + op->block_size;
    const float *q = op->q + row * op->q_stride + first_head * op->head_size;
    for (size_t head = 0; head < group; head++)
        start_softmax(running + head * decode->running_floats, op->head_size);
    for (size_t tile = 0; tile * op->block_size < end; tile++) {
        size_t num_keys = min_size(op->block_size, end - tile * op->block_size);
        const float *keys = tile_start(op, op->k_cache, table_row, tile, kv_head);
        const float *values = tile_start(op, op->v_cache, table_row, tile, kv_head);
        for (size_t head = 0; head < group; head++) {
            for (size_t key = 0; key < num_keys; key++)
                scores[key] = op->scale * dot(q + head * op->head_size, keys + key * key_stride(op), op->head_size);
            take_scores(running + head * decode->running_floats, scores, num_keys, values, key_stride(op),
                        op->head_size);
        }
    }
    float *out = op->out + (row * op->num_heads + first_head) * op->head_size;
    for (size_t head = 0; head < group; head++)
        finish_softmax(running + head * decode->running_floats, out + head * op->head_size, op->head_size);
}

static void attend_units(const void *argument, size_t begin, size_t end, size_t thread)
{
    const struct decode *decode = argument;
    const struct attention *op = decode->op;
    for (size_t unit = begin; unit < end; unit++) {
        size_t row = unit / op->num_kv_heads, kv_head = unit % op->num_kv_heads;
        size_t head_floats = op->num_heads / op->num_kv_heads * op->head_size;
        if (decode->table_rows[row] == 0)
            memset(op->out + (row * op->num_kv_heads + kv_head) * head_floats, 0, head_floats * sizeof(float));
        else
            attend(decode, row, kv_head, decode->scratch + thread * decode->scratch_floats);
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
    size_t running_floats = WEIGHTED + op->head_size;
    size_t scratch_floats = op->block_size + op->num_heads / op->num_kv_heads * running_floats;
    scratch_floats = divide_up(scratch_floats, SUM_LANES) * SUM_LANES;
    float *scratch = pool_scratch(pool, scratch_floats * pool_num_threads(pool));
    if (scratch == NULL)
        return OUT_OF_MEMORY;
    struct decode decode = {op, table_rows, positions, running_floats, scratch_floats, scratch};
    size_t cost = divide_up(num_keys, max_size(op->num_tokens, 1)) * op->head_size *
                  (op->num_heads / op->num_kv_heads);
    pool_run(pool, op->num_tokens * op->num_kv_heads, grain_for(cost), attend_units, &decode);
    return OK;
}
