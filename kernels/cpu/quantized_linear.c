/* Linear layers with weights of 8 or 4 bits and activations of 8: y = x W^T + bias.
 *
 * Rows of x are quantized first (quantize_rows.h). Then, for each column and group of k in order,
 *     sum = fused((float)dot, scale of the row * scale of the column, sum)
 * where dot is the exact integer product over the group, computed in 32 bits: at most 65536 inputs a group.
 * So a result does not depend on the number of rows, nor on how a level multiplies integers.
 */
#include "quantize_rows.h"
#include "quantized_group.h"
#include "quantized_tiles.h"

enum {
    ROW_BLOCK = WIDTH == 16 ? 8 : 4, /* accumulators that fit in the registers: 2 a row */
    ROW_GROUP = 64,                  /* rows of a unit of work */
    PREFETCH_BYTES = 8192,           /* one stream a thread is too little for the hardware's own prefetch */
    CACHE_LINE = 64,
};

/* x (num_rows, num_in), rows x_stride apart; out (num_rows, num_out). */
struct quantized_linear_call {
    size_t num_rows;
    const struct quantized *weight;
    const float *x;
    size_t x_stride;
    float *out;
};

struct product {
    const struct quantized_linear_call *call;
    struct quantized_rows rows;
    size_t num_row_groups;
};

/* To each 32-bit lane of sums: the four unsigned bytes of weights times the four signed ones of x. */
INLINE int_lanes add_products(int_lanes sums, uint_lanes weights, int_lanes x)
{
#if WIDTH == 16 && defined(__AVX512VNNI__)
    return (int_lanes)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, (__m512i)x);
#elif WIDTH == 16 || WIDTH == 8
    /* Bytes 0 and 2, then bytes 1 and 3, as pairs of 16 bits: their products can't saturate. */
    typedef int16_t halves __attribute__((vector_size(4 * WIDTH)));
    halves even = (halves)(weights & 0x00ff00ff), odd = (halves)(weights >> 8 & 0x00ff00ff);
    halves x_even = (halves)x << 8 >> 8, x_odd = (halves)x >> 8;
#if WIDTH == 16
    sums += (int_lanes)_mm512_madd_epi16((__m512i)even, (__m512i)x_even);
    return sums + (int_lanes)_mm512_madd_epi16((__m512i)odd, (__m512i)x_odd);
#else
    sums += (int_lanes)_mm256_madd_epi16((__m256i)even, (__m256i)x_even);
    return sums + (int_lanes)_mm256_madd_epi16((__m256i)odd, (__m256i)x_odd);
#endif
#else
    sums += (int_lanes)(weights & 255) * (x << 24 >> 24);
    sums += (int_lanes)(weights >> 8 & 255) * (x << 16 >> 24);
    sums += (int_lanes)(weights >> 16 & 255) * (x << 8 >> 24);
    return sums + (int_lanes)(weights >> 24) * (x >> 24);
#endif
}

/* The same four bytes in every lane. */
INLINE int_lanes broadcast_bytes(const int8_t *from)
{
    int32_t bytes;
    memcpy(&bytes, from, sizeof bytes);
    return bytes - (int_lanes){0};
}

INLINE uint_lanes load_bytes(const uint8_t *from)
{
    return (uint_lanes)load((const float *)from);
}

/* Adds a group's products of num_rows rows (a constant) to sums[row][column]. */
INLINE void add_group(const uint8_t *block, size_t num_steps, bool is_int4, bool is_prefetching, struct row_group x,
                      float *sums, int num_rows)
{
    int_lanes left[ROW_BLOCK], right[ROW_BLOCK];
    for (int row = 0; row < num_rows; row++)
        left[row] = right[row] = x.starts[row] - (int_lanes){0};
    for (size_t step = 0; step < num_steps; step++) {
        const uint8_t *weights = block + step * STEP_BYTES;
        for (size_t line = 0; is_prefetching && line < STEP_BYTES; line += CACHE_LINE)
            __builtin_prefetch(weights + PREFETCH_BYTES + line);
        uint_lanes left_weights = load_bytes(weights), right_weights = load_bytes(weights + 4 * WIDTH);
        if (!is_int4) {
#pragma GCC unroll 8
            for (int row = 0; row < num_rows; row++) {
                int_lanes values = broadcast_bytes(x.integers + (size_t)row * x.group_size + 4 * step);
                left[row] = add_products(left[row], left_weights, values);
                right[row] = add_products(right[row], right_weights, values);
            }
            continue;
        }
        uint_lanes left_upper = left_weights >> 4 & 0x0f0f0f0f, right_upper = right_weights >> 4 & 0x0f0f0f0f;
        left_weights &= 0x0f0f0f0f;
        right_weights &= 0x0f0f0f0f;
#pragma GCC unroll 8
        for (int row = 0; row < num_rows; row++) {
            const int8_t *integers = x.integers + (size_t)row * x.group_size + 8 * step;
            int_lanes values = broadcast_bytes(integers), upper = broadcast_bytes(integers + 4);
            left[row] = add_products(left[row], left_weights, values);
            right[row] = add_products(right[row], right_weights, values);
            left[row] = add_products(left[row], left_upper, upper);
            right[row] = add_products(right[row], right_upper, upper);
        }
    }
    const uint8_t *scales = block + num_steps * STEP_BYTES;
    if (is_prefetching)
        __builtin_prefetch(scales + PREFETCH_BYTES);
    lanes left_scales = load_scales(scales), right_scales = load_scales(scales + SCALE_BYTES / 2);
#pragma GCC unroll 8
    for (int row = 0; row < num_rows; row++) {
        add_scaled(sums + row * PANEL, left[row], x.scales[row], left_scales);
        add_scaled(sums + row * PANEL + WIDTH, right[row], x.scales[row], right_scales);
    }
}

/* The first block of rows fetches the weights that come next; the others find theirs in the cache. */
INLINE void add_rows(const uint8_t *block, size_t num_steps, bool is_int4, struct row_group x, float *sums,
                     size_t num_rows)
{
    size_t row = 0;
    if (num_rows >= ROW_BLOCK) {
        add_group(block, num_steps, is_int4, true, x, sums, ROW_BLOCK);
        row = ROW_BLOCK;
    }
    for (; row + ROW_BLOCK <= num_rows; row += ROW_BLOCK)
        add_group(block, num_steps, is_int4, false, from_row(x, row), sums + row * PANEL, ROW_BLOCK);
    if (ROW_BLOCK > 4 && row + 4 <= num_rows) {
        add_group(block, num_steps, is_int4, true, from_row(x, row), sums + row * PANEL, 4);
        row += 4;
    }
    if (row + 2 <= num_rows) {
        add_group(block, num_steps, is_int4, true, from_row(x, row), sums + row * PANEL, 2);
        row += 2;
    }
    if (row < num_rows)
        add_group(block, num_steps, is_int4, true, from_row(x, row), sums + row * PANEL, 1);
}

/* Rows [row, row + num_rows) of one panel's columns. */
static void multiply_panel(const struct product *product, size_t panel, size_t row, size_t num_rows)
{
    const struct quantized *weight = product->call->weight;
    const struct quantized_rows *rows = &product->rows;
    const uint8_t *blocks = weight->panels + panel * weight->panel_bytes;
    float sums[ROW_GROUP * PANEL] __attribute__((aligned(64)));
    memset(sums, 0, num_rows * PANEL * sizeof(float));
    for (size_t group = 0; group < weight->num_groups; group++) {
        const uint8_t *block = blocks + block_offset(weight, group);
        size_t index = group * rows->num_rows + row;
        struct row_group x = {rows->integers + index * weight->group_size, weight->group_size, rows->scales + index,
                              rows->starts + index};
        size_t num_steps = steps_of_group(weight, group);
        /* Both ways give the same integers, so it does not matter which rows go which way. */
        size_t num_done = add_rows_on_tiles(weight, block, num_steps, x, sums, num_rows);
        struct row_group left = from_row(x, num_done);
        if (weight->is_int4)
            add_rows(block, num_steps, true, left, sums + num_done * PANEL, num_rows - num_done);
        else
            add_rows(block, num_steps, false, left, sums + num_done * PANEL, num_rows - num_done);
    }
    size_t num_columns = min_size(PANEL, weight->num_out - panel * PANEL);
    float *out = product->call->out + row * weight->num_out + panel * PANEL;
    for (size_t i = 0; i < num_rows; i++)
        for (size_t column = 0; column < num_columns; column += WIDTH) {
            lanes sum = load(sums + i * PANEL + column);
            if (weight->bias != NULL)
                sum += load(weight->bias + panel * PANEL + column);
            store_first(out + i * weight->num_out + column, sum, num_columns - column);
        }
}

static void multiply(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct product *product = op;
    (void)thread;
    begin_tiles(product->call->weight);
    for (size_t unit = begin; unit < end; unit++) {
        size_t row = unit % product->num_row_groups * ROW_GROUP;
        multiply_panel(product, unit / product->num_row_groups, row,
                       min_size(ROW_GROUP, product->call->num_rows - row));
    }
    end_tiles(product->call->weight);
}

EXPORT int KERNEL(quantized_linear)(struct pool *pool, const struct quantized_linear_call *call)
{
    const struct quantized *weight = call->weight;
    size_t num_rows = call->num_rows, num_panels = divide_up(weight->num_out, PANEL);
    size_t num_scales = num_rows * weight->num_groups;
    size_t integer_floats = divide_up(num_scales * weight->group_size, sizeof(float));
    float *scratch = pool_scratch(pool, max_size(integer_floats + 2 * num_scales, 1));
    if (scratch == NULL)
        return OUT_OF_MEMORY;
    float *scales = scratch + integer_floats;
    struct quantized_rows rows = {weight, call->x, call->x_stride, num_rows, (int8_t *)scratch, scales,
                                  (int32_t *)(scales + num_scales)};
    pool_run(pool, num_rows, grain_for(weight->num_in), quantize_rows, &rows);
    struct product product = {call, rows, divide_up(num_rows, ROW_GROUP)};
    size_t cost = weight->num_in * max_size(min_size(num_rows, ROW_GROUP) / 2, 4);
    pool_run(pool, num_panels * product.num_row_groups, grain_for(cost), multiply, &product);
    return OK;
}
