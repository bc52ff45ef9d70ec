/* Tile registers (AMX): eight registers of up to 16 rows of 64 bytes, and the products of two of them.
 *
 * Only at the amx level. With -DEMULATE_TILES plain C stands in for the instructions, rounding as they are
 * documented to (Intel SDM, TDPBF16PS and TDPBSUD), so that kernels on tiles are tested on any machine.
 *
 * Roles are fixed: tiles 0 to 3 are sums, 4 and 5 inputs A, 6 and 7 weights B:
 *
 *     A (num_rows rows of k_bytes)      k side by side: bfloat16 [row][k] or int8 [row][k]
 *     B (k_bytes / 4 rows of 64 bytes)  16 columns, each with the 4 bytes of k that lie together in A:
 *                                       bfloat16 [k / 2][column][k % 2] or uint8 [k / 4][column][k % 4]
 *     sums (num_rows rows of 64 bytes)  float or int32 [row][column]
 *
 * A row of the sums depends on its own row of A alone and not on num_rows. Tile numbers are literals.
 */
#ifndef MAMBAD_TILES_H
#define MAMBAD_TILES_H

#include "lanes.h"

#if defined(__AMX_TILE__)

enum { TILE_ROWS = 16, TILE_BYTES = 64, TILE_COLUMNS = 16, NUM_TILES = 8 };

/* What ldtilecfg reads: palette 1, and the size of every tile. */
struct tile_sizes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

INLINE struct tile_sizes tile_sizes_for(size_t num_rows, size_t k_bytes)
{
    struct tile_sizes sizes = {.palette = 1};
    for (int tile = 0; tile < NUM_TILES; tile++) {
        bool is_weights = tile >= 6, is_input = tile == 4 || tile == 5;
        sizes.rows[tile] = (uint8_t)(is_weights ? k_bytes / 4 : num_rows);
        sizes.row_bytes[tile] = (uint16_t)(is_input ? k_bytes : TILE_BYTES);
    }
    return sizes;
}

#if !defined(EMULATE_TILES)

/* Readies this thread's tiles for num_rows (1 to 16) rows and k_bytes (a multiple of 4, up to 64) of k. */
INLINE void tiles_begin(size_t num_rows, size_t k_bytes)
{
    struct tile_sizes sizes = tile_sizes_for(num_rows, k_bytes);
    /* GCC's intrinsics do not say that the instructions read memory; what was written must be there by now. */
    __asm__ volatile("" : : "r"(&sizes) : "memory");
    _tile_loadconfig(&sizes);
}

INLINE void tiles_end(void)
{
    _tile_release();
}

#define tile_zero(tile) _tile_zero(tile)
#define tile_load(tile, from, row_stride) _tile_loadd(tile, from, row_stride)
#define tile_store(tile, to, row_stride) _tile_stored(tile, to, row_stride)
#define tile_add_bfloat16(sums, a, b) _tile_dpbf16ps(sums, a, b) /* sums += A B in float32 */
#define tile_add_int8(sums, a, b) _tile_dpbsud(sums, a, b)       /* sums += A B in int32 */

#else

struct tile {
    int32_t words[TILE_ROWS][TILE_COLUMNS];
};

static _Thread_local struct tile tiles[NUM_TILES];
static _Thread_local struct tile_sizes tile_sizes;

INLINE void tiles_begin(size_t num_rows, size_t k_bytes)
{
    tile_sizes = tile_sizes_for(num_rows, k_bytes);
    memset(tiles, 0, sizeof tiles);
}

INLINE void tiles_end(void)
{
    memset(&tile_sizes, 0, sizeof tile_sizes);
}

INLINE void tile_zero(int tile)
{
    memset(&tiles[tile], 0, sizeof tiles[tile]);
}

/* Rows and bytes beyond the tile's size become 0. */
INLINE void tile_load(int tile, const void *from, size_t row_stride)
{
    tile_zero(tile);
    for (size_t row = 0; row < tile_sizes.rows[tile]; row++)
        memcpy(tiles[tile].words[row], (const char *)from + row * row_stride, tile_sizes.row_bytes[tile]);
}

INLINE void tile_store(int tile, void *to, size_t row_stride)
{
    for (size_t row = 0; row < tile_sizes.rows[tile]; row++)
        memcpy((char *)to + row * row_stride, tiles[tile].words[row], tile_sizes.row_bytes[tile]);
}

/* Denormals become 0 of the same sign. */
INLINE lanes without_denormals(lanes x)
{
    int_lanes bits = (int_lanes)x, is_normal = (bits & 0x7f800000) != 0;
    return (lanes)(bits & (is_normal | INT32_MIN));
}

/* The first and the second bfloat16 of each pair. */
INLINE lanes even_half(int_lanes pairs)
{
    return without_denormals((lanes)(pairs << 16));
}

INLINE lanes odd_half(int_lanes pairs)
{
    return without_denormals((lanes)(pairs & INT32_MIN >> 15));
}

/* sums += A B: the even k and the odd k of a tile are summed apart from 0 on, then together, then added. */
INLINE void tile_add_bfloat16(int sums, int a, int b)
{
    size_t num_pairs = tile_sizes.row_bytes[a] / 4u;
    for (size_t row = 0; row < tile_sizes.rows[sums]; row++) {
        lanes even = {0}, odd = {0};
        for (size_t pair = 0; pair < num_pairs; pair++) {
            int_lanes inputs = (int_lanes){0} + tiles[a].words[row][pair], weights;
            memcpy(&weights, tiles[b].words[pair], sizeof weights);
            even = without_denormals(fused(even_half(inputs), even_half(weights), even));
            odd = without_denormals(fused(odd_half(inputs), odd_half(weights), odd));
        }
        lanes sum;
        memcpy(&sum, tiles[sums].words[row], sizeof sum);
        sum = without_denormals(without_denormals(sum) + without_denormals(even + odd));
        memcpy(tiles[sums].words[row], &sum, sizeof sum);
    }
}

/* sums += A B, exact; beyond 32 bits it wraps. */
INLINE void tile_add_int8(int sums, int a, int b)
{
    for (size_t row = 0; row < tile_sizes.rows[sums]; row++)
        for (size_t quad = 0; quad < tile_sizes.row_bytes[a] / 4u; quad++)
            for (size_t column = 0; column < TILE_COLUMNS; column++) {
                const int8_t *inputs = (const int8_t *)&tiles[a].words[row][quad];
                const uint8_t *weights = (const uint8_t *)&tiles[b].words[quad][column];
                uint32_t sum = (uint32_t)tiles[sums].words[row][column];
                for (int k = 0; k < 4; k++)
                    sum += (uint32_t)(inputs[k] * weights[k]);
                tiles[sums].words[row][column] = (int32_t)sum;
            }
}

#endif
#endif
#endif
