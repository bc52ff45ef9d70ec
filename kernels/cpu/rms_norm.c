/* Root-mean-square norm of rows. The sum of squares is taken in the fixed order of add_products. */
#include <math.h>

#include "functions.h"

struct norm {
    const float *x;
    size_t x_stride;
    const float *weight;
    float epsilon;
    float *out;
    size_t width;
};

static void norm_rows(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct norm *norm = op;
    (void)thread;
    for (size_t row = begin; row < end; row++) {
        const float *x = norm->x + row * norm->x_stride;
        float *out = norm->out + row * norm->width;
        lanes scale = broadcast(1.0f / sqrtf(dot(x, x, norm->width) / (float)norm->width + norm->epsilon));
        for (size_t i = 0; i < norm->width; i += WIDTH) {
            size_t count = norm->width - i;
            store_first(out + i, load_first(x + i, count) * scale * load_first(norm->weight + i, count), count);
        }
    }
}

/* x (num_rows, width), rows x_stride apart; weight (width); out (num_rows, width). */
EXPORT int KERNEL(rms_norm)(struct pool *pool, const float *x, size_t x_stride, const float *weight, float epsilon,
                            float *out, size_t num_rows, size_t width)
{
    struct norm norm = {x, x_stride, weight, epsilon, out, width};
    pool_run(pool, num_rows, grain_for(width), norm_rows, &norm);
    return OK;
}
