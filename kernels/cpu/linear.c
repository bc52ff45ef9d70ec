/* Linear layers: y = x W^T + bias, with W packed once.
 *
 * W (N, K) is cut into panels of PANEL output columns, each stored as (K, PANEL). Every output is the sum over
 * k = 0, 1, 2, ... in that order, in float32, whatever the number of rows: a block of rows only shares the
 * loads of W. Stopping after K_BLOCK steps and going on from the stored sums changes nothing either.
 */
#include <stdbool.h>
#include <stdlib.h>

#include "lanes.h"
#include "memory.h"

enum {
    PANEL = 2 * WIDTH,
    ROW_BLOCK = WIDTH == 16 ? 8 : 4,    /* accumulators that fit in the registers: 2 a row */
    ROW_GROUP = 64,                     /* rows of a unit of work */
    K_BLOCK = 128,                      /* keeps a panel's part in the first-level cache for all rows of a unit */
    PREFETCH_BYTES = 8192,              /* one stream a thread is too little for the hardware's own prefetch */
    CACHE_LINE = 64,
    FLOAT_STEP = PANEL * sizeof(float), /* bytes of a panel for one k */
    BFLOAT16_STEP = PANEL * sizeof(uint16_t),
};

struct linear {
    size_t num_out;
    size_t num_in;
    size_t num_bytes;
    bool is_bfloat16;
    void *panels; /* float or bfloat16 [num_panels][num_in][PANEL], columns beyond num_out are 0 */
    float *bias;  /* [num_panels][PANEL] or NULL */
};

struct packing {
    const struct linear *linear;
    const void *weight;
};

struct product {
    const struct linear *linear;
    const float *x;
    size_t x_stride;
    float *out;
    size_t num_rows;
    size_t num_row_groups;
};

static void pack_panels(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct packing *packing = op;
    const struct linear *linear = packing->linear;
    (void)thread;
    for (size_t panel = begin; panel < end; panel++)
        for (size_t k = 0; k < linear->num_in; k++)
            for (size_t column = 0; column < PANEL; column++) {
                size_t to = (panel * linear->num_in + k) * PANEL + column;
                size_t from = (panel * PANEL + column) * linear->num_in + k;
                bool is_real = panel * PANEL + column < linear->num_out;
                if (linear->is_bfloat16)
                    ((uint16_t *)linear->panels)[to] = is_real ? ((const uint16_t *)packing->weight)[from] : 0;
                else
                    ((float *)linear->panels)[to] = is_real ? ((const float *)packing->weight)[from] : 0;
            }
}

EXPORT void KERNEL(free_linear)(struct linear *linear)
{
    free(linear->panels);
    free(linear->bias);
    free(linear);
}

EXPORT size_t KERNEL(linear_bytes)(const struct linear *linear)
{
    return linear->num_bytes;
}

/* weight (num_out, num_in) float or bfloat16, contiguous; bias (num_out) or NULL. NULL without memory. */
EXPORT struct linear *KERNEL(pack_linear)(struct pool *pool, const void *weight, const float *bias, size_t num_out,
                                          size_t num_in, int is_bfloat16)
{
    struct linear *linear = calloc(1, sizeof *linear);
    if (linear == NULL)
        return NULL;
    size_t num_columns = divide_up(num_out, PANEL) * PANEL;
    size_t panel_bytes = num_columns * num_in * (is_bfloat16 ? sizeof(uint16_t) : sizeof(float));
    size_t bias_bytes = bias == NULL ? 0 : num_columns * sizeof(float);
    linear->num_out = num_out;
    linear->num_in = num_in;
    linear->is_bfloat16 = is_bfloat16 != 0;
    linear->panels = allocate_weights(panel_bytes);
    linear->bias = bias == NULL ? NULL : allocate_weights(bias_bytes);
    linear->num_bytes = panel_bytes + bias_bytes;
    if (linear->panels == NULL || (bias != NULL && linear->bias == NULL)) {
        KERNEL(free_linear)(linear);
        return NULL;
    }
    if (bias != NULL) {
        memset(linear->bias, 0, bias_bytes);
        memcpy(linear->bias, bias, num_out * sizeof(float));
    }
    struct packing packing = {linear, weight};
    pool_run(pool, num_columns / PANEL, grain_for(num_in * PANEL), pack_panels, &packing);
    return linear;
}

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
static void add_steps(const struct product *product, size_t panel, size_t k, size_t num_k, const float *x,
                      size_t num_rows, float *sums)
{
    const struct linear *linear = product->linear;
    size_t offset = (panel * linear->num_in + k) * PANEL, x_stride = product->x_stride;
    if (!linear->is_bfloat16) {
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

/* Rows [row, row + num_rows) of one panel's columns. */
static void multiply_panel(const struct product *product, size_t panel, size_t row, size_t num_rows)
{
    const struct linear *linear = product->linear;
    const float *x = product->x + row * product->x_stride;
    float sums[ROW_GROUP * PANEL] __attribute__((aligned(64)));
    memset(sums, 0, num_rows * PANEL * sizeof(float));
    for (size_t k = 0; k < linear->num_in; k += K_BLOCK)
        add_steps(product, panel, k, min_size(K_BLOCK, linear->num_in - k), x + k, num_rows, sums);
    size_t num_columns = min_size(PANEL, linear->num_out - panel * PANEL);
    float *out = product->out + row * linear->num_out + panel * PANEL;
    for (size_t i = 0; i < num_rows; i++)
        for (size_t column = 0; column < num_columns; column += WIDTH) {
            lanes sum = load(sums + i * PANEL + column);
            if (linear->bias != NULL)
                sum += load(linear->bias + panel * PANEL + column);
            store_first(out + i * linear->num_out + column, sum, num_columns - column);
        }
}

static void multiply(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct product *product = op;
    (void)thread;
    for (size_t unit = begin; unit < end; unit++) {
        size_t row = unit % product->num_row_groups * ROW_GROUP;
        multiply_panel(product, unit / product->num_row_groups, row, min_size(ROW_GROUP, product->num_rows - row));
    }
}

/* x (num_rows, num_in), rows x_stride apart; out (num_rows, num_out). */
EXPORT int KERNEL(linear)(struct pool *pool, const struct linear *linear, const float *x, size_t x_stride,
                          size_t num_rows, float *out)
{
    struct product product = {linear, x, x_stride, out, num_rows, divide_up(num_rows, ROW_GROUP)};
    size_t num_panels = divide_up(linear->num_out, PANEL);
    size_t cost = linear->num_in * max_size(min_size(num_rows, ROW_GROUP) / 4, 1);
    pool_run(pool, num_panels * product.num_row_groups, grain_for(cost), multiply, &product);
    return OK;
}
