/* Causal depthwise convolution with SiLU over a span of tokens: what conv_prefill and conv_update share. */
#ifndef MAMBAD_CONV_H
#define MAMBAD_CONV_H

#include "chunks.h"
#include "functions.h"
#include "transpose.h"

enum { CONV_CHANNELS = 64 }; /* channels of a unit of work */

struct conv {
    const float *x;
    size_t x_stride;
    const float *weight; /* (kernel_width, num_channels): transposed, so that channels are contiguous */
    const float *bias;   /* (num_channels) or NULL */
    float *state;        /* (num_slots, kernel_width - 1, num_channels) */
    float *out;
    size_t num_channels;
    size_t kernel_width;
    float *windows; /* of each thread: conv_window_floats, for the inputs that a span's outputs see */
};

static inline size_t conv_window_floats(size_t kernel_width, size_t max_span_tokens)
{
    return (kernel_width - 1 + max_span_tokens) * CONV_CHANNELS;
}

/* Copies num_rows rows of at most CONV_CHANNELS channels. */
static inline void copy_rows(float *to, size_t to_stride, const float *from, size_t from_stride, size_t num_rows,
                             size_t num_channels)
{
    for (size_t row = 0; row < num_rows; row++)
        for (size_t i = 0; i < num_channels; i += WIDTH) {
            size_t count = num_channels - i;
            store_first(to + row * to_stride + i, load_first(from + row * from_stride + i, count), count);
        }
}

/* One token's outputs; window points at the oldest of the kernel_width inputs. */
static inline void conv_token(const struct conv *conv, const float *window, float *out, size_t channel,
                              size_t num_channels)
{
    for (size_t i = 0; i < num_channels; i += WIDTH) {
        size_t count = num_channels - i;
        lanes sum = {0};
        if (conv->bias != NULL)
            sum = load_first(conv->bias + channel + i, count);
        for (size_t tap = 0; tap < conv->kernel_width; tap++) {
            lanes weights = load_first(conv->weight + tap * conv->num_channels + channel + i, count);
            sum = fused(weights, load(window + tap * CONV_CHANNELS + i), sum);
        }
        store_first(out + i, silu_lanes(sum), count);
    }
}

/* All tokens of a span for the CONV_CHANNELS channels from `channel` on, and the state after them. */
static inline void conv_span(const struct conv *conv, struct span span, size_t channel, float *window)
{
    size_t num_channels = min_size(CONV_CHANNELS, conv->num_channels - channel);
    size_t history = conv->kernel_width - 1;
    size_t slot_floats = history * conv->num_channels;
    float *state = conv->state + channel;
    if (span.read_slot != 0)
        copy_rows(window, CONV_CHANNELS, state + span.read_slot * slot_floats, conv->num_channels, history,
                  num_channels);
    else
        memset(window, 0, history * CONV_CHANNELS * sizeof(float));
    copy_rows(window + history * CONV_CHANNELS, CONV_CHANNELS, conv->x + span.first_token * conv->x_stride + channel,
              conv->x_stride, span.num_tokens, num_channels);
    for (size_t token = 0; token < span.num_tokens; token++)
        conv_token(conv, window + token * CONV_CHANNELS,
                   conv->out + (span.first_token + token) * conv->num_channels + channel, channel, num_channels);
    const float *newest = window + span.num_tokens * CONV_CHANNELS;
    if (span.write_slot != 0)
        copy_rows(state + span.write_slot * slot_floats, conv->num_channels, newest, CONV_CHANNELS, history,
                  num_channels);
    if (span.checkpoint_slot != 0)
        copy_rows(state + span.checkpoint_slot * slot_floats, conv->num_channels, newest, CONV_CHANNELS, history,
                  num_channels);
}

/* Scratch for the transposed weight and the windows of all threads; false without memory. */
static inline bool prepare_conv(struct conv *conv, struct pool *pool, const float *weight, size_t max_span_tokens)
{
    size_t weight_floats = divide_up(conv->kernel_width * conv->num_channels, SUM_LANES) * SUM_LANES;
    size_t window_floats = conv_window_floats(conv->kernel_width, max_span_tokens);
    float *scratch = pool_scratch(pool, weight_floats + window_floats * pool_num_threads(pool));
    if (scratch == NULL)
        return false;
    transpose(weight, conv->kernel_width, scratch, conv->num_channels, conv->num_channels, conv->kernel_width);
    conv->weight = scratch;
    conv->windows = scratch + weight_floats;
    return true;
}

#endif
