/* Causal depthwise convolution with SiLU: the arguments of conv_prefill and conv_update, and their weight. */
#ifndef MAMBAD_CONV_H
#define MAMBAD_CONV_H

#include "chunks.h"
#include "functions.h"
#include "transpose.h"

/* The names are those of kernels/ops.py. state_calls.py mirrors the fields' order. */
struct conv {
    size_t num_tokens;
    const float *x; /* (num_tokens, num_channels), tokens x_stride apart */
    size_t x_stride;
    const float *weight; /* (num_channels, kernel_width) */
    const float *bias;   /* (num_channels) or NULL */
    float *state;        /* (num_slots, kernel_width - 1, num_channels) */
    float *out;          /* (num_tokens, num_channels) */
    size_t num_channels;
    size_t kernel_width;
    size_t num_slots;
};

static inline size_t conv_weight_floats(const struct conv *conv)
{
    return divide_up(conv->kernel_width * conv->num_channels, SUM_LANES) * SUM_LANES;
}

/* Returns scratch that begins with the transposed weight and has room for more; NULL without memory. */
static inline float *conv_weight(const struct conv *conv, struct pool *pool, size_t num_more_floats)
{
    float *weight = pool_scratch(pool, conv_weight_floats(conv) + num_more_floats);
    if (weight != NULL)
        transpose(conv->weight, conv->kernel_width, weight, conv->num_channels, conv->num_channels,
                  conv->kernel_width);
    return weight;
}

#endif
