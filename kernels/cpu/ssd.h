/* Mamba-2's recurrence: the arguments and the step size, which ssd_scan and ssd_state_update share. */
#ifndef MAMBAD_SSD_H
#define MAMBAD_SSD_H

#include "chunks.h"
#include "functions.h"
#include "state.h"

/* The names are those of kernels/ops.py. state_calls.py mirrors the fields' order. */
struct ssd {
    size_t num_tokens;
    const float *x;
    size_t x_stride;
    const float *dt;
    size_t dt_stride;
    const float *A;
    const float *B;
    size_t B_stride;
    const float *C;
    size_t C_stride;
    const float *D;
    const float *dt_bias;
    float dt_low;
    float dt_high;
    void *state; /* (num_slots, num_heads, head_size, state_size), float or bfloat16 */
    size_t state_is_bfloat16;
    float *out; /* (num_tokens, num_heads, head_size) */
    size_t num_heads;
    size_t head_size;
    size_t num_groups;
    size_t state_size;
    size_t num_slots;
};

/* The final dt of one head: of WIDTH tokens in the scan, broadcast in the update. */
INLINE lanes ssd_step_size(const struct ssd *op, size_t head, lanes dt)
{
    dt = softplus_lanes(dt + op->dt_bias[head]);
    return at_most(broadcast(op->dt_high), at_least(broadcast(op->dt_low), dt));
}

static inline size_t ssd_group(const struct ssd *op, size_t head)
{
    return head / (op->num_heads / op->num_groups);
}

/* Index of the first number of row `row` (of head_size) of a head in a slot. */
static inline size_t ssd_state_index(const struct ssd *op, size_t slot, size_t head, size_t row)
{
    return ((slot * op->num_heads + head) * op->head_size + row) * op->state_size;
}

#endif
