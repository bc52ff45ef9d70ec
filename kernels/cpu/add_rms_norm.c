/* Adds a layer's output to the residual stream and normalises the sum: see norm.h.
 *
 * The product with the multiplier and the sum are rounded one after the other.
 */
#include "norm.h"

/* residual, update, out (num_rows, width), contiguous; weight (width). */
struct add_rms_norm_call {
    size_t num_rows;
    float *residual; /* changed in place */
    const float *update;
    const float *weight;
    float *out;
    size_t width;
    float multiplier;
    float epsilon;
};

static void add_and_norm_rows(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct add_rms_norm_call *call = op;
    (void)thread;
    for (size_t row = begin; row < end; row++) {
        float *residual = call->residual + row * call->width;
        const float *update = call->update + row * call->width;
        for (size_t i = 0; i < call->width; i += WIDTH) {
            size_t count = call->width - i;
            lanes scaled_update = load_first(update + i, count) * broadcast(call->multiplier);
            store_first(residual + i, load_first(residual + i, count) + scaled_update, count);
        }
        norm_row(residual, call->weight, call->epsilon, call->out + row * call->width, call->width);
    }
}

EXPORT int KERNEL(add_rms_norm)(struct pool *pool, const struct add_rms_norm_call *call)
{
    pool_run(pool, call->num_rows, grain_for(2 * call->width), add_and_norm_rows, call);
    return OK;
}
