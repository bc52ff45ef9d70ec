/* Divides rows by a constant, in place. */
#include "lanes.h"

/* x (num_rows, width), contiguous, changed in place. */
struct divide_call {
    size_t num_rows;
    float *x;
    size_t width;
    float divisor;
};

static void divide_rows(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct divide_call *call = op;
    (void)thread;
    for (size_t i = begin * call->width; i < end * call->width; i++)
        call->x[i] /= call->divisor;
}

EXPORT int KERNEL(divide)(struct pool *pool, const struct divide_call *call)
{
    pool_run(pool, call->num_rows, grain_for(call->width), divide_rows, call);
    return OK;
}
