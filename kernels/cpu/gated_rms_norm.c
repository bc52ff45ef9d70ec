/* Mamba-2's norm: gate with silu(z) first, then divide each group of channels by its root mean square. */
#include <math.h>

#include "functions.h"

/* y, z (num_rows, width), rows y_stride and z_stride apart; weight (width); out (num_rows, width). */
struct gated_rms_norm_call {
    size_t num_rows;
    const float *y;
    size_t y_stride;
    const float *z;
    size_t z_stride;
    const float *weight;
    float *out;
    size_t width;
    size_t num_groups;
    float epsilon;
};

/* The gated values stand in out until the group's scale is known. */
static void norm_group(const float *y, const float *z, const float *weight, float epsilon, float *out, size_t width)
{
    for (size_t i = 0; i < width; i += WIDTH) {
        size_t count = width - i;
        store_first(out + i, load_first(y + i, count) * silu_lanes(load_first(z + i, count)), count);
    }
    lanes scale = broadcast(1.0f / sqrtf(dot(out, out, width) / (float)width + epsilon));
    for (size_t i = 0; i < width; i += WIDTH) {
        size_t count = width - i;
        store_first(out + i, load_first(out + i, count) * scale * load_first(weight + i, count), count);
    }
}

static void norm_rows(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct gated_rms_norm_call *norm = op;
    size_t group_width = norm->width / norm->num_groups;
    (void)thread;
    for (size_t row = begin; row < end; row++)
        for (size_t channel = 0; channel < norm->width; channel += group_width)
            norm_group(norm->y + row * norm->y_stride + channel, norm->z + row * norm->z_stride + channel,
                       norm->weight + channel, norm->epsilon, norm->out + row * norm->width + channel, group_width);
}

EXPORT int KERNEL(gated_rms_norm)(struct pool *pool, const struct gated_rms_norm_call *call)
{
    pool_run(pool, call->num_rows, grain_for(2 * call->width), norm_rows, call);
    return OK;
}
