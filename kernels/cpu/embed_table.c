/* Rows of an embedding table by token id, widened to float and multiplied. A unit of work is a row. */
#include "lanes.h"

/* token_ids (num_rows); table (num_tokens, width) float or bfloat16; out (num_rows, width). */
struct embed_table_call {
    size_t num_rows;
    const int64_t *token_ids;
    const void *table;
    float *out;
    size_t num_tokens;
    size_t width;
    float multiplier;
    int is_bfloat16;
};

static void embed_rows(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct embed_table_call *call = op;
    (void)thread;
    for (size_t row = begin; row < end; row++) {
        size_t from = (size_t)call->token_ids[row] * call->width;
        float *out = call->out + row * call->width;
        if (call->is_bfloat16)
            for (size_t i = 0; i < call->width; i++) {
                uint32_t bits = (uint32_t)((const uint16_t *)call->table)[from + i] << 16;
                memcpy(out + i, &bits, sizeof bits);
            }
        else
            memcpy(out, (const float *)call->table + from, call->width * sizeof(float));
        for (size_t i = 0; i < call->width; i++)
            out[i] *= call->multiplier;
    }
}

EXPORT int KERNEL(embed_table)(struct pool *pool, const struct embed_table_call *call)
{
    for (size_t row = 0; row < call->num_rows; row++)
        if (call->token_ids[row] < 0 || (uint64_t)call->token_ids[row] >= call->num_tokens)
            return BAD_TOKEN;
    pool_run(pool, call->num_rows, grain_for(call->width), embed_rows, call);
    return OK;
}
