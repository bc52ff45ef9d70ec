/* Causal convolution of one token a row: see conv.h. A unit of work is a block of channels of one row.
 *
 * The sums are conv_token's, tap by tap; the window is the state itself, whose rows move up as they are read.
 */
#include "conv.h"

enum { CHANNELS = 512, USUAL_WIDTH = 4 };

/* Tokens are rows here. */
struct conv_update_call {
    struct conv conv;
    struct rows rows;
};

struct update {
    const struct conv_update_call *call;
    const float *weight; /* (kernel_width, num_channels) */
    size_t num_blocks;
};

/* One row's part of x, states and output: pointers to its first channel, rows num_channels apart. */
struct unit {
    const float *x;
    const float *weight;
    const float *bias; /* or NULL */
    const float *from; /* or NULL for zeros; may be `to` */
    float *to;
    float *out;
};

/* `count` (at most WIDTH) channels from `lane` on. */
INLINE void update_lanes(struct unit unit, size_t num_channels, size_t kernel_width, size_t lane, size_t count)
{
    lanes sum = {0};
    if (unit.bias != NULL)
        sum = load_first(unit.bias + lane, count);
    for (size_t tap = 0; tap < kernel_width; tap++) {
        bool is_newest = tap + 1 == kernel_width;
        lanes input = {0};
        if (is_newest)
            input = load_first(unit.x + lane, count);
        else if (unit.from != NULL)
            input = load_first(unit.from + tap * num_channels + lane, count);
        if (tap > 0)
            store_first(unit.to + (tap - 1) * num_channels + lane, input, count);
        sum = fused(load_first(unit.weight + tap * num_channels + lane, count), input, sum);
    }
    store_first(unit.out + lane, silu_lanes(sum), count);
}

INLINE void update_unit(struct unit unit, size_t num_channels, size_t kernel_width, size_t num_lanes)
{
    size_t lane = 0;
    for (; lane + WIDTH <= num_lanes; lane += WIDTH)
        update_lanes(unit, num_channels, kernel_width, lane, WIDTH);
    if (lane < num_lanes)
        update_lanes(unit, num_channels, kernel_width, lane, num_lanes - lane);
}

static void update_row(const struct update *update, struct span span, size_t channel)
{
    const struct conv *conv = &update->call->conv;
    size_t num_lanes = min_size(CHANNELS, conv->num_channels - channel);
    size_t slot_floats = (conv->kernel_width - 1) * conv->num_channels;
    float *state = conv->state + channel;
    struct unit unit = {conv->x + span.first_token * conv->x_stride + channel,
                        update->weight + channel,
                        conv->bias == NULL ? NULL : conv->bias + channel,
                        span.read_slot == 0 ? NULL : state + span.read_slot * slot_floats,
                        state + span.write_slot * slot_floats,
                        conv->out + span.first_token * conv->num_channels + channel};
    if (conv->kernel_width == USUAL_WIDTH)
        update_unit(unit, conv->num_channels, USUAL_WIDTH, num_lanes);
    else
        update_unit(unit, conv->num_channels, conv->kernel_width, num_lanes);
}

static void update_units(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct update *update = op;
    const struct conv *conv = &update->call->conv;
    (void)thread;
    for (size_t unit = begin; unit < end; unit++) {
        size_t row = unit / update->num_blocks, channel = unit % update->num_blocks * CHANNELS;
        if (is_padding(&update->call->rows, row))
            memset(conv->out + row * conv->num_channels + channel, 0,
                   min_size(CHANNELS, conv->num_channels - channel) * sizeof(float));
        else
            update_row(update, row_span(&update->call->rows, row), channel);
    }
}

EXPORT int KERNEL(conv_update)(struct pool *pool, const struct conv_update_call *call)
{
    const struct conv *conv = &call->conv;
    enum status status = check_rows(&call->rows, conv->num_tokens, conv->num_slots);
    if (status != OK)
        return status;
    struct update update = {call, conv_weight(conv, pool, 0), divide_up(conv->num_channels, CHANNELS)};
    if (update.weight == NULL)
        return OUT_OF_MEMORY;
    pool_run(pool, conv->num_tokens * update.num_blocks, grain_for(CHANNELS * 8), update_units, &update);
    return OK;
}
