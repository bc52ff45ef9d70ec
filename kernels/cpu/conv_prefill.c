/* Causal convolution over chunks: see conv.h.
 *
 * A unit of work is a block of channels; a thread takes its channels through all chunks in order, so a chunk
 * finds the state that an earlier one wrote.
 */
#include "conv.h"

enum { CHANNELS = 64 };

struct conv_prefill_call {
    struct conv conv;
    struct chunks chunks;
};

struct prefill {
    const struct conv_prefill_call *call;
    const float *weight; /* (kernel_width, num_channels) */
    float *windows;      /* of each thread: window_floats */
};

/* Room for the inputs that a chunk's outputs see, for CHANNELS channels. */
static size_t window_floats(const struct conv *conv)
{
    return (conv->kernel_width - 1 + MAX_CHUNK_TOKENS) * CHANNELS;
}

/* Copies num_rows rows of at most CHANNELS channels. */
static void copy_rows(float *to, size_t to_stride, const float *from, size_t from_stride, size_t num_rows,
                      size_t num_channels)
{
    for (size_t row = 0; row < num_rows; row++)
        for (size_t i = 0; i < num_channels; i += WIDTH) {
            size_t count = num_channels - i;
            store_first(to + row * to_stride + i, load_first(from + row * from_stride + i, count), count);
        }
}

/* One token's outputs; weight is transposed and window points at the oldest of the kernel_width inputs. */
static void conv_token(const struct conv *conv, const float *weight, const float *window, float *out,
                       size_t channel, size_t num_channels)
{
    for (size_t i = 0; i < num_channels; i += WIDTH) {
        size_t count = num_channels - i;
        lanes sum = {0};
        if (conv->bias != NULL)
            sum = load_first(conv->bias + channel + i, count);
        for (size_t tap = 0; tap < conv->kernel_width; tap++) {
            lanes weights = load_first(weight + tap * conv->num_channels + channel + i, count);
            sum = fused(weights, load(window + tap * CHANNELS + i), sum);
        }
        store_first(out + i, silu_lanes(sum), count);
    }
}

/* All tokens of a span for the CHANNELS channels from `channel` on, and the state after them. */
static void conv_span(const struct conv *conv, const float *weight, struct span span, size_t channel,
                      float *window)
{
    size_t num_channels = min_size(CHANNELS, conv->num_channels - channel);
    size_t history = conv->kernel_width - 1;
    size_t slot_floats = history * conv->num_channels;
    float *state = conv->state + channel;
    if (span.read_slot != 0)
        copy_rows(window, CHANNELS, state + span.read_slot * slot_floats, conv->num_channels, history,
                  num_channels);
    else
        memset(window, 0, history * CHANNELS * sizeof(float));
    copy_rows(window + history * CHANNELS, CHANNELS, conv->x + span.first_token * conv->x_stride + channel,
              conv->x_stride, span.num_tokens, num_channels);
    for (size_t token = 0; token < span.num_tokens; token++)
        conv_token(conv, weight, window + token * CHANNELS,
                   conv->out + (span.first_token + token) * conv->num_channels + channel, channel, num_channels);
    const float *newest = window + span.num_tokens * CHANNELS;
    if (span.write_slot != 0)
        copy_rows(state + span.write_slot * slot_floats, conv->num_channels, newest, CHANNELS, history,
                  num_channels);
    if (span.checkpoint_slot != 0)
        copy_rows(state + span.checkpoint_slot * slot_floats, conv->num_channels, newest, CHANNELS, history,
                  num_channels);
}

static void conv_channels(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct prefill *prefill = op;
    const struct conv *conv = &prefill->call->conv;
    const struct chunks *chunks = &prefill->call->chunks;
    float *window = prefill->windows + thread * window_floats(conv);
    for (size_t i = 0; i < chunks->num_chunks; i++) {
        struct span span = chunk_span(chunks, i);
        for (size_t block = begin; block < end; block++)
            conv_span(conv, prefill->weight, span, block * CHANNELS, window);
    }
}

EXPORT int KERNEL(conv_prefill)(struct pool *pool, const struct conv_prefill_call *call)
{
    const struct conv *conv = &call->conv;
    enum status status = check_chunks(&call->chunks, conv->num_tokens, conv->num_slots);
    if (status != OK)
        return status;
    float *weight = conv_weight(conv, pool, window_floats(conv) * pool_num_threads(pool));
    if (weight == NULL)
        return OUT_OF_MEMORY;
    struct prefill prefill = {call, weight, weight + conv_weight_floats(conv)};
    size_t cost = conv->num_tokens * CHANNELS * 2;
    pool_run(pool, divide_up(conv->num_channels, CHANNELS), grain_for(cost), conv_channels, &prefill);
    return OK;
}
