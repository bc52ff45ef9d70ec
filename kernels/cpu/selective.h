/* One token of Mamba-1's recurrence: what selective_scan and selective_state_update share.
 *
 * Lanes are channels; the sum over the state size runs n = 0, 1, 2, ... in each lane. Both ops use the same
 * code, so prefilling a token and decoding it give the same bits.
 */
#ifndef MAMBAD_SELECTIVE_H
#define MAMBAD_SELECTIVE_H

#include "chunks.h"
#include "functions.h"

enum { SELECTIVE_CHANNELS = 64 }; /* channels of a unit of work */

/* The names are those of kernels/ops.py. library.py mirrors the fields' order. */
struct selective {
    const float *x;
    size_t x_stride;
    const float *dt;
    size_t dt_stride;
    const float *A; /* (state_size, num_channels) */
    const float *B;
    size_t B_stride;
    const float *C;
    size_t C_stride;
    const float *D;
    const float *z;
    size_t z_stride;
    const float *dt_bias;
    float *state; /* (num_slots, state_size, num_channels) */
    float *out;
    size_t num_tokens;
    size_t num_channels;
    size_t state_size;
    size_t num_slots;
};

/* State of SELECTIVE_CHANNELS or fewer channels: row n starts at values + n * stride. */
struct selective_state {
    float *values;
    size_t stride;
};

/* `count` channels (at most WIDTH) from `channel` on; both states point at the first of them. */
INLINE void selective_lanes(const struct selective *op, size_t token, size_t channel, size_t count,
                            struct selective_state from, struct selective_state to)
{
    lanes x = load_first(op->x + token * op->x_stride + channel, count);
    lanes dt = load_first(op->dt + token * op->dt_stride + channel, count);
    dt = softplus_lanes(dt + load_first(op->dt_bias + channel, count));
    lanes inflow = dt * x, y = {0};
    const float *A = op->A + channel;
    const float *B = op->B + token * op->B_stride, *C = op->C + token * op->C_stride;
    for (size_t n = 0; n < op->state_size; n++) {
        lanes decay = exp_lanes(dt * load_first(A + n * op->num_channels, count));
        lanes state = load_first(from.values + n * from.stride, count);
        state = fused(decay, state, inflow * broadcast(B[n]));
        store_first(to.values + n * to.stride, state, count);
        y = fused(state, broadcast(C[n]), y);
    }
    y = fused(load_first(op->D + channel, count), x, y);
    lanes z = load_first(op->z + token * op->z_stride + channel, count);
    store_first(op->out + token * op->num_channels + channel, y * silu_lanes(z), count);
}

/* One token for num_channels channels from `channel` on; from and to may be the same state. */
static inline void selective_token(const struct selective *op, size_t token, size_t channel, size_t num_channels,
                                   struct selective_state from, struct selective_state to)
{
    size_t i = 0;
    for (; i + WIDTH <= num_channels; i += WIDTH, from.values += WIDTH, to.values += WIDTH)
        selective_lanes(op, token, channel + i, WIDTH, from, to);
    if (i < num_channels)
        selective_lanes(op, token, channel + i, num_channels - i, from, to);
}

static inline struct selective_state selective_slot(const struct selective *op, size_t slot, size_t channel)
{
    struct selective_state state = {op->state + slot * op->state_size * op->num_channels + channel, op->num_channels};
    return state;
}

#endif
