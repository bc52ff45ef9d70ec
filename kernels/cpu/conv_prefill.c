/* Causal convolution over chunks: see conv.h.
 *
 * A unit of work is a block of channels; a thread takes its channels through all chunks in order, so a chunk
 * finds the state that an earlier one wrote.
 */
#include "conv.h"

struct prefill {
    struct conv conv;
    const struct chunks *chunks;
};

static void conv_channels(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct prefill *prefill = op;
    const struct conv *conv = &prefill->conv;
    float *window = conv->windows + thread * conv_window_floats(conv->kernel_width, MAX_CHUNK_TOKENS);
    for (size_t i = 0; i < prefill->chunks->num_chunks; i++) {
        struct span span = chunk_span(prefill->chunks, i);
        for (size_t block = begin; block < end; block++)
            conv_span(conv, span, block * CONV_CHANNELS, window);
    }
}

/* x, out (num_tokens, num_channels), rows of x x_stride apart; weight (num_channels, kernel_width);
 * bias (num_channels) or NULL; state (num_slots, kernel_width - 1, num_channels). */
EXPORT int KERNEL(conv_prefill)(struct pool *pool, const float *x, size_t x_stride, const float *weight,
                                const float *bias, float *state, float *out, size_t num_tokens, size_t num_channels,
                                size_t kernel_width, size_t num_slots, const struct chunks *chunks)
{
    enum status status = check_chunks(chunks, num_tokens, num_slots);
    if (status != OK)
        return status;
    struct prefill prefill = {{.x = x,
                               .x_stride = x_stride,
                               .bias = bias,
                               .state = state,
                               .out = out,
                               .num_channels = num_channels,
                               .kernel_width = kernel_width},
                              chunks};
    if (!prepare_conv(&prefill.conv, pool, weight, MAX_CHUNK_TOKENS))
        return OUT_OF_MEMORY;
    size_t cost = num_tokens * CONV_CHANNELS * 2;
    pool_run(pool, divide_up(num_channels, CONV_CHANNELS), grain_for(cost), conv_channels, &prefill);
    return OK;
}
