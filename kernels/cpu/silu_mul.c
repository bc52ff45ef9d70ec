/* The gated MLP's activation: silu of the first half of a row times the second half. */
#include "functions.h"

/* gate_up (num_rows, 2 * width), rows stride apart; out (num_rows, width). */
struct silu_mul_call {
    size_t num_rows;
    const float *gate_up;
    size_t stride;
    float *out;
    size_t width;
};

static void gate_rows(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct silu_mul_call *gate = op;
    (void)thread;
    for (size_t row = begin; row < end; row++) {
        const float *from = gate->gate_up + row * gate->stride;
        for (size_t i = 0; i < gate->width; i += WIDTH) {
            size_t count = gate->width - i;
            lanes up = load_first(from + gate->width + i, count);
            store_first(gate->out + row * gate->width + i, silu_lanes(load_first(from + i, count)) * up, count);
        }
    }
}

EXPORT int KERNEL(silu_mul)(struct pool *pool, const struct silu_mul_call *call)
{
    pool_run(pool, call->num_rows, grain_for(2 * call->width), gate_rows, call);
    return OK;
}
