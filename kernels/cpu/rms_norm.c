/* Root-mean-square norm of rows: see norm.h. */
#include "norm.h"

/* x (num_rows, width), rows x_stride apart; weight (width); out (num_rows, width). */
struct rms_norm_call {
    size_t num_rows;
    const float *x;
    size_t x_stride;
    const float *weight;
    float *out;
    size_t width;
    float epsilon;
};

static void norm_rows(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct rms_norm_call *norm = op;
    (void)thread;
    for (size_t row = begin; row < end; row++)
        norm_row(norm->x + row * norm->x_stride, norm->weight, norm->epsilon, norm->out + row * norm->width,
                 norm->width);
}

EXPORT int KERNEL(rms_norm)(struct pool *pool, const struct rms_norm_call *call)
{
    pool_run(pool, call->num_rows, grain_for(call->width), norm_rows, call);
    return OK;
}
