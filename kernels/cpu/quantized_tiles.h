/* Quantized products on tile registers (tiles.h), for whole tiles of rows and of k; other levels have none.
 *
 * The products of integers are exact, so rows and groups that do not fill a tile may go the other way.
 */
#ifndef MAMBAD_QUANTIZED_TILES_H
#define MAMBAD_QUANTIZED_TILES_H

#include "quantized_group.h"
#include "tiles.h"

#if defined(__AMX_INT8__)

enum {
    MAX_UNPACKED = 128,               /* inputs of a group of 4 bits that are unpacked */
    TILE_STRIDE = STEP_BYTES,         /* from one row of a weight tile to the next: a panel is two tiles wide */
    PRODUCTS_STRIDE = 4 * PANEL,
};

/* Bytes of k in a tile: those of a whole group, or of a part of it; 0 where groups do not divide into tiles. */
INLINE size_t tile_k(const struct quantized *weight)
{
    if (weight->is_int4 && weight->group_size > MAX_UNPACKED)
        return 0;
    return weight->group_size % 64 == 0 ? 64 : weight->group_size % 32 == 0 ? 32 : 0;
}

INLINE void begin_tiles(const struct quantized *weight)
{
    if (tile_k(weight) != 0)
        tiles_begin(TILE_ROWS, tile_k(weight));
}

INLINE void end_tiles(const struct quantized *weight)
{
    if (tile_k(weight) != 0)
        tiles_end();
}

/* Bytes of 4 bits each, as a tile wants them: the lower halves of a step, then the upper ones. */
INLINE void unpack_steps(const uint8_t *block, size_t num_steps, uint8_t *unpacked)
{
    for (size_t i = 0; i < num_steps * STEP_BYTES; i += 4 * WIDTH) {
        size_t to = 2 * (i - i % STEP_BYTES) + i % STEP_BYTES;
        uint_lanes bytes = (uint_lanes)load((const float *)(block + i));
        store((float *)(unpacked + to), (lanes)(bytes & 0x0f0f0f0f));
        store((float *)(unpacked + to + STEP_BYTES), (lanes)(bytes >> 4 & 0x0f0f0f0f));
    }
}

/* Exact products of one tile of rows, or of two, with a group of num_k inputs, k of them in a tile. */
INLINE void multiply_tiles(const uint8_t *weights, size_t num_k, size_t k, struct row_group x, bool is_double,
                           int32_t *products)
{
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    for (size_t first = 0; first < num_k; first += k) {
        const uint8_t *tile = weights + first / 4 * TILE_STRIDE;
        tile_load(4, x.integers + first, x.group_size);
        tile_load(6, tile, TILE_STRIDE);
        tile_load(7, tile + TILE_BYTES, TILE_STRIDE);
        tile_add_int8(0, 4, 6);
        tile_add_int8(1, 4, 7);
        if (is_double) {
            tile_load(5, x.integers + TILE_ROWS * x.group_size + first, x.group_size);
            tile_add_int8(2, 5, 6);
            tile_add_int8(3, 5, 7);
        }
    }
    tile_store(0, products, PRODUCTS_STRIDE);
    tile_store(1, products + TILE_COLUMNS, PRODUCTS_STRIDE);
    if (is_double) {
        tile_store(2, products + TILE_ROWS * PANEL, PRODUCTS_STRIDE);
        tile_store(3, products + TILE_ROWS * PANEL + TILE_COLUMNS, PRODUCTS_STRIDE);
    }
}

/* Adds a group's products to sums[row][column] for as many rows as fill tiles, and returns their number. */
INLINE size_t add_rows_on_tiles(const struct quantized *weight, const uint8_t *block, size_t num_steps,
                                struct row_group x, float *sums, size_t num_rows)
{
    int32_t products[2 * TILE_ROWS * PANEL] __attribute__((aligned(64)));
    uint8_t unpacked[MAX_UNPACKED / 4 * STEP_BYTES] __attribute__((aligned(64)));
    size_t num_k = num_steps * (weight->is_int4 ? 8 : 4), k = tile_k(weight);
    if (num_rows < TILE_ROWS || k == 0 || num_k % k != 0)
        return 0;
    const uint8_t *weights = block, *scales = block + num_steps * STEP_BYTES;
    if (weight->is_int4) {
        unpack_steps(block, num_steps, unpacked);
        weights = unpacked;
    }
    lanes left_scales = load_scales(scales), right_scales = load_scales(scales + SCALE_BYTES / 2);
    size_t num_done = 0;
    while (num_rows - num_done >= TILE_ROWS) {
        bool is_double = num_rows - num_done >= 2 * TILE_ROWS;
        size_t num_new = is_double ? 2 * TILE_ROWS : TILE_ROWS;
        struct row_group rows = from_row(x, num_done);
        multiply_tiles(weights, num_k, k, rows, is_double, products);
        for (size_t row = 0; row < num_new; row++) {
            float *sum = sums + (num_done + row) * PANEL;
            const float *left = (const float *)(products + row * PANEL), *right = left + WIDTH;
            add_scaled(sum, (int_lanes)load(left) + rows.starts[row], rows.scales[row], left_scales);
            add_scaled(sum + WIDTH, (int_lanes)load(right) + rows.starts[row], rows.scales[row], right_scales);
        }
        num_done += num_new;
    }
    return num_done;
}

#else

INLINE void begin_tiles(const struct quantized *weight)
{
    (void)weight;
}

INLINE void end_tiles(const struct quantized *weight)
{
    (void)weight;
}

INLINE size_t add_rows_on_tiles(const struct quantized *weight, const uint8_t *block, size_t num_steps,
                                struct row_group x, float *sums, size_t num_rows)
{
    (void)weight, (void)block, (void)num_steps, (void)x, (void)sums, (void)num_rows;
    return 0;
}

#endif
#endif
