/* One token of Mamba-1's recurrence: what selective_scan and selective_state_update share.
 *
 * Lanes are channels; the sum over the state size runs n = 0, 1, 2, ... in each lane. Both ops use the same
 * code, so prefilling a token and decoding it give the same bits from the same state.
 */
#ifndef MAMBAD_SELECTIVE_H
#define MAMBAD_SELECTIVE_H

#include "chunks.h"
#include "functions.h"
#include "state.h"

/* The names are those of kernels/ops.py. state_calls.py mirrors the fields' order. */
struct selective {
    size_t num_tokens;
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
    void *state; /* (num_slots, state_size, num_channels), float or bfloat16 */
    size_t state_is_bfloat16;
    float *out;
    size_t num_channels;
    size_t state_size;
    size_t num_slots;
};

/* What a token's channels (at most WIDTH) need before their states and keep until after them. */
struct selective_step {
    lanes exponent; /* dt * log2(e), to be multiplied by A */
    lanes inflow;   /* dt * x */
};

INLINE struct selective_step selective_step(const struct selective *op, size_t token, size_t channel, size_t count)
{
    lanes x = load_first(op->x + token * op->x_stride + channel, count);
    lanes dt = load_first(op->dt + token * op->dt_stride + channel, count);
    dt = softplus_lanes(dt + load_first(op->dt_bias + channel, count));
    struct selective_step step = {dt * 1.44269504f, dt * x};
    return step;
}

/* Advances one state of the channels and adds its part of their output to y. */
INLINE lanes selective_advance(struct selective_step step, lanes state, lanes A, float B, float C, lanes *y)
{
    lanes decay = exp2_of_negative(step.exponent * A);
    state = fused(decay, state, step.inflow * broadcast(B));
    *y = fused(state, broadcast(C), *y);
    return state;
}

/* Writes the channels' outputs; y is C . state. */
INLINE void selective_output(const struct selective *op, size_t token, size_t channel, size_t count, lanes y)
{
    lanes x = load_first(op->x + token * op->x_stride + channel, count);
    lanes z = load_first(op->z + token * op->z_stride + channel, count);
    y = fused(load_first(op->D + channel, count), x, y);
    store_first(op->out + token * op->num_channels + channel, y * silu_lanes(z), count);
}

#endif
