/* Rows of an embedding by token id from the packed weight of a linear layer, so that a head and the embedding
 * it is tied to lie in memory once. Weights come out as they went in. A unit of work is a row. */
#include "linear.h"

/* token_ids (num_rows); out (num_rows, num_in of linear). */
struct embed_packed_call {
    size_t num_rows;
    const int64_t *token_ids;
    const struct linear *linear;
    float *out;
    float multiplier;
};

INLINE float weight_at(const struct linear *linear, size_t index)
{
    if (!linear->is_bfloat16)
        return ((const float *)linear->panels)[index];
    uint32_t bits = (uint32_t)((const uint16_t *)linear->panels)[index] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void embed_rows(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct embed_packed_call *call = op;
    const struct linear *linear = call->linear;
    (void)thread;
    for (size_t row = begin; row < end; row++) {
        float *out = call->out + row * linear->num_in;
        size_t first = first_weight(linear, (size_t)call->token_ids[row]);
        for (size_t k = 0; k < linear->num_in; k++)
            out[k] = weight_at(linear, first + weight_offset(linear, k)) * call->multiplier;
    }
}

EXPORT int KERNEL(embed_packed)(struct pool *pool, const struct embed_packed_call *call)
{
    for (size_t row = 0; row < call->num_rows; row++)
        if (call->token_ids[row] < 0 || (uint64_t)call->token_ids[row] >= call->linear->num_out)
            return BAD_TOKEN;
    pool_run(pool, call->num_rows, grain_for(call->linear->num_in * 4), embed_rows, call);
    return OK;
}
