/* A linear layer y = x W^T + bias with W packed once, and who multiplies by it.
 *
 * W (num_out, num_in) is cut into panels of PANEL output columns; columns beyond num_out are 0. A panel holds
 * its weights in groups of `group` values of k:
 *
 *     panels[panel][k / group][column][k % group]        group = 1: k outermost, PANEL columns side by side
 *
 * float32 weights always have group 1. bfloat16 weights have group 2 where the level multiplies pairs of them
 * (BFLOAT16_PAIRS); num_k is then num_in rounded up to K_UNIT, and the weights beyond num_in are 0.
 */
#ifndef MAMBAD_LINEAR_H
#define MAMBAD_LINEAR_H

#include <stdbool.h>

#include "lanes.h"

#if defined(__AMX_BF16__)
enum { BFLOAT16_PAIRS = 1, K_UNIT = 32 }; /* the k of a tile */
#elif defined(__AVX512BF16__)
enum { BFLOAT16_PAIRS = 1, K_UNIT = 2 };
#else
enum { BFLOAT16_PAIRS = 0, K_UNIT = 1 };
#endif

enum {
    PANEL = 2 * WIDTH,
    ROW_GROUP = 64, /* rows of a unit of work: it multiplies them by one panel */
};

struct linear {
    size_t num_out;
    size_t num_in;
    size_t num_k; /* of a panel, padding included */
    size_t group;
    size_t num_bytes;
    bool is_bfloat16;
    void *panels; /* float or bfloat16, see above */
    float *bias;  /* [num_panels][PANEL] or NULL */
};

/* x (num_rows, num_in), rows x_stride apart; out (num_rows, num_out). */
struct linear_call {
    size_t num_rows;
    const struct linear *linear;
    const float *x;
    size_t x_stride;
    float *out;
};

/* Where in panels the weight of a column and k = 0 lies, and how far from there the one of another k. */
INLINE size_t first_weight(const struct linear *linear, size_t column)
{
    return column / PANEL * linear->num_k * PANEL + column % PANEL * linear->group;
}

INLINE size_t weight_offset(const struct linear *linear, size_t k)
{
    return linear->group == 2 ? k / 2 * (2 * PANEL) + k % 2 : k * PANEL;
}

/* weight (num_out, num_in) float or bfloat16, contiguous; bias (num_out) or NULL. NULL without memory. */
struct linear *KERNEL(pack_linear)(struct pool *pool, const void *weight, const float *bias, size_t num_out,
                                   size_t num_in, int is_bfloat16);
void KERNEL(free_linear)(struct linear *linear);
int KERNEL(linear)(struct pool *pool, const struct linear_call *call);

/* Multiplies in float32; bfloat16 weights are widened, which is exact. Never fails. */
int KERNEL(multiply_float)(struct pool *pool, const struct linear_call *call);

/* Where BFLOAT16_PAIRS: by bfloat16 weights, x rounded to bfloat16 (nearest, ties to even). May find no memory. */
int KERNEL(multiply_bfloat16)(struct pool *pool, const struct linear_call *call);

/* Units of work of a call, one panel for one group of rows each; the groups of a panel come one by one. */
INLINE size_t num_row_groups(const struct linear_call *call)
{
    return divide_up(call->num_rows, ROW_GROUP);
}

INLINE size_t num_units(const struct linear_call *call)
{
    return divide_up(call->linear->num_out, PANEL) * num_row_groups(call);
}

struct unit {
    size_t panel, row, num_rows;
};

INLINE struct unit unit_at(const struct linear_call *call, size_t index)
{
    size_t row = index % num_row_groups(call) * ROW_GROUP;
    return (struct unit){index / num_row_groups(call), row, min_size(ROW_GROUP, call->num_rows - row)};
}

/* Writes sums + bias as the panel's part of num_rows outputs from `row` on. */
INLINE void store_outputs(const struct linear_call *call, size_t panel, size_t row, size_t num_rows,
                          const float *sums)
{
    const struct linear *linear = call->linear;
    size_t num_columns = min_size(PANEL, linear->num_out - panel * PANEL);
    float *out = call->out + row * linear->num_out + panel * PANEL;
    for (size_t i = 0; i < num_rows; i++)
        for (size_t column = 0; column < num_columns; column += WIDTH) {
            lanes sum = load(sums + i * PANEL + column);
            if (linear->bias != NULL)
                sum += load(linear->bias + panel * PANEL + column);
            store_first(out + i * linear->num_out + column, sum, num_columns - column);
        }
}

#endif
