/* Causal convolution of one token a row: see conv.h. A unit of work is a block of channels of one row. */
#include "conv.h"

struct update {
    struct conv conv;
    struct rows rows;
    size_t num_blocks;
};

static void conv_units(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct update *update = op;
    const struct conv *conv = &update->conv;
    float *window = conv->windows + thread * conv_window_floats(conv->kernel_width, 1);
    for (size_t unit = begin; unit < end; unit++) {
        size_t row = unit / update->num_blocks, channel = unit % update->num_blocks * CONV_CHANNELS;
        if (is_padding(&update->rows, row))
            memset(conv->out + row * conv->num_channels + channel, 0,
                   min_size(CONV_CHANNELS, conv->num_channels - channel) * sizeof(float));
        else
            conv_span(conv, row_span(&update->rows, row), channel, window);
    }
}

/* x, out (num_rows, num_channels), rows of x x_stride apart; the rest as in conv_prefill. */
EXPORT int KERNEL(conv_update)(struct pool *pool, const float *x, size_t x_stride, const float *weight,
                               const float *bias, float *state, float *out, size_t num_rows, size_t num_channels,
                               size_t kernel_width, size_t num_slots, const int32_t *read_slots,
                               const int32_t *write_slots)
{
    struct update update = {{.x = x,
                             .x_stride = x_stride,
                             .bias = bias,
                             .state = state,
                             .out = out,
                             .num_channels = num_channels,
                             .kernel_width = kernel_width},
                            {num_rows, read_slots, write_slots},
                            divide_up(num_channels, CONV_CHANNELS)};
    enum status status = check_rows(&update.rows, num_slots);
    if (status != OK)
        return status;
    if (!prepare_conv(&update.conv, pool, weight, 1))
        return OUT_OF_MEMORY;
    pool_run(pool, num_rows * update.num_blocks, grain_for(CONV_CHANNELS * 2), conv_units, &update);
    return OK;
}
