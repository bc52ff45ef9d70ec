/* The product of a linear layer in float32.
 *
 * Every output is the sum over k = 0, 1, 2, ... in that order, whatever the number of rows: a block of rows
 * only shares the loads of W. Stopping after K_BLOCK steps and going on from the stored sums changes nothing.
 */
#include "linear.h"

enum {
    ROW_BLOCK = WIDTH == 16 ? 8 : 4,    /* accumulators that fit in the registers: 2 a row */
    K_BLOCK = 128,                      /* keeps a panel's part in the first-level cache for all rows of a unit */
    PREFETCH_BYTES = 8192,              /* one stream a thread is too little for the hardware's own prefetch */
    CACHE_LINE = 64,
    FLOAT_STEP = PANEL * sizeof(float), /* bytes of a panel for one k */
    BFLOAT16_STEP = PANEL * sizeof(uint16_t),
};

INLINE lanes load_weights(const void *panel, size_t index, bool is_bfloat16)
{
    return is_bfloat16 ? load_bfloat16((const uint16_t *)panel + index) : load((const float *)panel + index);
}

/* A panel's part for `count` values of k, and what to fetch meanwhile: bytes_ahead for each, from `ahead` on. */
struct steps {
    const void *weights;
    size_t count;
    const char *ahead;
    size_t bytes_ahead; /* a constant */
};

/* Adds x[row][k] * weights[k][column] to sums[row][column] for num_rows rows (a constant). */
INLINE void add_rows(const float *x, size_t x_stride, struct steps steps, bool is_bfloat16, float *sums, int num_rows)
{
    lanes left[ROW_BLOCK], right[ROW_BLOCK];
    for (int row = 0; row < num_rows; row++) {
        left[row] = load(sums + row * PANEL);
        right[row] = load(sums + row * PANEL + WIDTH);
    }
    for (size_t k = 0; k < steps.count; k++) {
        for (size_t line = 0; line < steps.bytes_ahead; line += CACHE_LINE)
            __builtin_prefetch(steps.ahead + k * steps.bytes_ahead + line);
        lanes left_weights = load_weights(steps.weights, k * PANEL, is_bfloat16);
        lanes right_weights = load_weights(steps.weights, k * PANEL + WIDTH, is_bfloat16);
#pragma GCC unroll 8
        for (int row = 0; row < num_rows; row++) {
            lanes value = broadcast(x[(size_t)row * x_stride + k]);
            left[row] = fused(left_weights, value, left[row]);
            right[row] = fused(right_weights, value, right[row]);
        }
    }
    for (int row = 0; row < num_rows; row++) {
        store(sums + row * PANEL, left[row]);
        store(sums + row * PANEL + WIDTH, right[row]);
    }
}

INLINE void add_all_rows(const float *x, size_t x_stride, struct steps steps, bool is_bfloat16, float *sums,
                         size_t num_rows)
{
    size_t row = 0;
    for (; row + ROW_BLOCK <= num_rows; row += ROW_BLOCK)
        add_rows(x + row * x_stride, x_stride, steps, is_bfloat16, sums + row * PANEL, ROW_BLOCK);
    if (ROW_BLOCK > 4 && row + 4 <= num_rows) {
        add_rows(x + row * x_stride, x_stride, steps, is_bfloat16, sums + row * PANEL, 4);
        row += 4;
    }
    if (row + 2 <= num_rows) {
        add_rows(x + row * x_stride, x_stride, steps, is_bfloat16, sums + row * PANEL, 2);
        row += 2;
    }
    if (row < num_rows)
        add_rows(x + row * x_stride, x_stride, steps, is_bfloat16, sums + row * PANEL, 1);
}

/* Adds the steps [k, k + num_k) of a panel for all rows; x starts at k, num_k is at most K_BLOCK. */
static void add_steps(const struct linear_call *call, size_t panel, size_t k, size_t num_k, const float *x,
                      size_t num_rows, float *sums)
{
    const struct linear *linear = call->linear;
    size_t offset = (panel * linear->num_k + k) * PANEL, x_stride = call->x_stride;
    if (BFLOAT16_PAIRS || !linear->is_bfloat16) {
        const float *weights = (const float *)linear->panels + offset;
        struct steps steps = {weights, num_k, (const char *)weights + PREFETCH_BYTES, FLOAT_STEP};
        add_all_rows(x, x_stride, steps, false, sums, num_rows);
        return;
    }
    const uint16_t *weights = (const uint16_t *)linear->panels + offset;
    if (num_rows <= ROW_BLOCK) {
        struct steps steps = {weights, num_k, (const char *)weights + PREFETCH_BYTES, BFLOAT16_STEP};
        add_all_rows(x, x_stride, steps, true, sums, num_rows);
        return;
    }
    /* Widening is exact, so it may be done once for several blocks of rows, or for each as it is above. */
    float wide[K_BLOCK * PANEL] __attribute__((aligned(64)));
    for (size_t i = 0; i < num_k * PANEL; i += WIDTH)
        store(wide + i, load_bfloat16(weights + i));
    struct steps steps = {wide, num_k, (const char *)(weights + K_BLOCK * PANEL), BFLOAT16_STEP};
    add_all_rows(x, x_stride, steps, false, sums, num_rows);
}

static void multiply(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct linear_call *call = op;
    size_t num_in = call->linear->num_in;
    (void)thread;
    for (size_t index = begin; index < end; index++) {
        struct unit unit = unit_at(call, index);
        const float *x = call->x + unit.row * call->x_stride;
        float sums[ROW_GROUP * PANEL] __attribute__((aligned(64)));
        memset(sums, 0, unit.num_rows * PANEL * sizeof(float));
        for (size_t k = 0; k < num_in; k += K_BLOCK)
            add_steps(call, unit.panel, k, min_size(K_BLOCK, num_in - k), x + k, unit.num_rows, sums);
        store_outputs(call, unit.panel, unit.row, unit.num_rows, sums);
    }
}

int KERNEL(multiply_float)(struct pool *pool, const struct linear_call *call)
{
    size_t cost = call->linear->num_in * max_size(min_size(call->num_rows, ROW_GROUP) / 4, 8);
    pool_run(pool, num_units(call), grain_for(cost), multiply, call);
    return OK;
}
