/* The product of a linear layer in bfloat16 with float32 sums, where the level multiplies pairs (vdpbf16ps).
 *
 * Every output is the sum over pairs of k in order, whatever the number of rows: a block of rows only shares
 * the loads of W. Stopping after PAIR_BLOCK pairs and going on from the stored sums changes nothing. Within a
 * pair the instruction has its own order and takes denormals as 0.
 */
#include "linear.h"

#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)

#include "rounded.h"

enum {
    ROW_BLOCK = 8,         /* 2 accumulators a row: enough to hide the instruction's latency */
    PAIR_BLOCK = 128,      /* keeps a panel's part in the first-level cache for all rows of a unit */
    PREFETCH_BYTES = 8192, /* one stream a thread is too little for the hardware's own prefetch */
    STEP_BYTES = PANEL * sizeof(uint32_t), /* of a panel for one pair */
};

struct product {
    const struct linear_call *call;
    const uint32_t *x; /* rounded, in pairs */
    size_t x_stride;
};

/* A panel's part for `count` pairs of k, and what to fetch meanwhile, STEP_BYTES for each. */
struct steps {
    const uint32_t *weights;
    size_t count;
    const char *ahead;
};

INLINE __m512bh load_pairs(const uint32_t *from)
{
    return (__m512bh)_mm512_loadu_si512(from);
}

/* Adds the products of pairs x[row][pair] . weights[pair][column] to sums for num_rows rows (a constant). */
INLINE void add_rows(const uint32_t *x, size_t x_stride, struct steps steps, float *sums, int num_rows)
{
    __m512 left[ROW_BLOCK], right[ROW_BLOCK];
    for (int row = 0; row < num_rows; row++) {
        left[row] = _mm512_load_ps(sums + row * PANEL);
        right[row] = _mm512_load_ps(sums + row * PANEL + WIDTH);
    }
    for (size_t pair = 0; pair < steps.count; pair++) {
        __builtin_prefetch(steps.ahead + pair * STEP_BYTES);
        __builtin_prefetch(steps.ahead + pair * STEP_BYTES + STEP_BYTES / 2);
        __m512bh left_weights = load_pairs(steps.weights + pair * PANEL);
        __m512bh right_weights = load_pairs(steps.weights + pair * PANEL + WIDTH);
#pragma GCC unroll 8
        for (int row = 0; row < num_rows; row++) {
            __m512bh value = (__m512bh)_mm512_set1_epi32((int)x[(size_t)row * x_stride + pair]);
            left[row] = _mm512_dpbf16_ps(left[row], left_weights, value);
            right[row] = _mm512_dpbf16_ps(right[row], right_weights, value);
        }
    }
    for (int row = 0; row < num_rows; row++) {
        _mm512_store_ps(sums + row * PANEL, left[row]);
        _mm512_store_ps(sums + row * PANEL + WIDTH, right[row]);
    }
}

static void add_all_rows(const uint32_t *x, size_t x_stride, struct steps steps, float *sums, size_t num_rows)
{
    for (; num_rows >= ROW_BLOCK; num_rows -= ROW_BLOCK) {
        add_rows(x, x_stride, steps, sums, ROW_BLOCK);
        x += ROW_BLOCK * x_stride;
        sums += ROW_BLOCK * PANEL;
    }
    switch (num_rows) {
    case 1: add_rows(x, x_stride, steps, sums, 1); break;
    case 2: add_rows(x, x_stride, steps, sums, 2); break;
    case 3: add_rows(x, x_stride, steps, sums, 3); break;
    case 4: add_rows(x, x_stride, steps, sums, 4); break;
    case 5: add_rows(x, x_stride, steps, sums, 5); break;
    case 6: add_rows(x, x_stride, steps, sums, 6); break;
    case 7: add_rows(x, x_stride, steps, sums, 7); break;
    }
}

static void multiply(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct product *product = op;
    const struct linear *linear = product->call->linear;
    size_t num_pairs = linear->num_k / 2;
    (void)thread;
    for (size_t index = begin; index < end; index++) {
        struct unit unit = unit_at(product->call, index);
        const uint32_t *panel = (const uint32_t *)linear->panels + unit.panel * num_pairs * PANEL;
        const uint32_t *x = product->x + unit.row * product->x_stride;
        float sums[ROW_GROUP * PANEL] __attribute__((aligned(64)));
        memset(sums, 0, unit.num_rows * PANEL * sizeof(float));
        /* The first block of rows reads the weights from afar, the next ones from the first-level cache. */
        size_t bytes_ahead = unit.num_rows <= ROW_BLOCK ? PREFETCH_BYTES : PAIR_BLOCK * STEP_BYTES;
        for (size_t pair = 0; pair < num_pairs; pair += PAIR_BLOCK) {
            const uint32_t *weights = panel + pair * PANEL;
            size_t count = min_size(PAIR_BLOCK, num_pairs - pair);
            struct steps steps = {weights, count, (const char *)weights + bytes_ahead};
            add_all_rows(x + pair, product->x_stride, steps, sums, unit.num_rows);
        }
        store_outputs(product->call, unit.panel, unit.row, unit.num_rows, sums);
    }
}

int KERNEL(multiply_bfloat16)(struct pool *pool, const struct linear_call *call)
{
    const uint16_t *rounded = round_inputs(pool, call);
    if (rounded == NULL)
        return OUT_OF_MEMORY;
    struct product product = {call, (const uint32_t *)rounded, rounded_stride(call->linear->num_in) / 2};
    size_t cost = call->linear->num_in * max_size(min_size(call->num_rows, ROW_GROUP) / 4, 4);
    pool_run(pool, num_units(call), grain_for(cost), multiply, &product);
    return OK;
}

#endif
