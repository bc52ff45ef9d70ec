/* The product of a linear layer in bfloat16 with float32 sums, on tile registers (tiles.h).
 *
 * Every output is the sum over tiles of K_UNIT values of k, in order; within a tile the instruction has its own
 * order. Rows of a tile do not see each other, so it does not matter how rows are dealt out to tiles: the last
 * block of a unit may begin among rows that are done, and then stores only the others.
 */
#include "linear.h"

#if defined(__AMX_BF16__)

#include "rounded.h"
#include "tiles.h"

enum {
    K_BYTES = K_UNIT * sizeof(uint16_t),
    STEP_BYTES = PANEL * K_BYTES,          /* of a panel for K_UNIT values of k */
    WEIGHTS_STRIDE = 2 * TILE_BYTES,       /* a panel is two tiles wide */
    SUMS_STRIDE = PANEL * sizeof(float),
    PREFETCH_BYTES = 4 * STEP_BYTES,
    CACHE_LINE = 64,
};

struct product {
    const struct linear_call *call;
    const char *x; /* rounded */
    size_t x_bytes;  /* from row to row */
};

/* What a block of rows multiplies: num_steps tiles of k of one panel. */
struct strip {
    const char *weights;
    size_t num_steps;
    bool is_first; /* block of its unit, which brings the weights in */
};

INLINE void prefetch_step(struct strip strip, size_t step)
{
    if (strip.is_first)
        for (size_t line = 0; line < STEP_BYTES; line += CACHE_LINE)
            __builtin_prefetch(strip.weights + step * STEP_BYTES + PREFETCH_BYTES + line);
}

/* sums[row][column] for the rows of one tile. */
static void multiply_one_tile(const char *x, size_t x_bytes, struct strip strip, float *sums)
{
    tile_zero(0);
    tile_zero(1);
    for (size_t step = 0; step < strip.num_steps; step++) {
        const char *weights = strip.weights + step * STEP_BYTES;
        prefetch_step(strip, step);
        tile_load(4, x + step * K_BYTES, x_bytes);
        tile_load(6, weights, WEIGHTS_STRIDE);
        tile_load(7, weights + TILE_BYTES, WEIGHTS_STRIDE);
        tile_add_bfloat16(0, 4, 6);
        tile_add_bfloat16(1, 4, 7);
    }
    tile_store(0, sums, SUMS_STRIDE);
    tile_store(1, sums + TILE_COLUMNS, SUMS_STRIDE);
}

/* The same for the rows of two tiles of TILE_ROWS rows. */
static void multiply_two_tiles(const char *x, size_t x_bytes, struct strip strip, float *sums)
{
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    for (size_t step = 0; step < strip.num_steps; step++) {
        const char *weights = strip.weights + step * STEP_BYTES;
        prefetch_step(strip, step);
        tile_load(4, x + step * K_BYTES, x_bytes);
        tile_load(5, x + step * K_BYTES + TILE_ROWS * x_bytes, x_bytes);
        tile_load(6, weights, WEIGHTS_STRIDE);
        tile_load(7, weights + TILE_BYTES, WEIGHTS_STRIDE);
        tile_add_bfloat16(0, 4, 6);
        tile_add_bfloat16(1, 4, 7);
        tile_add_bfloat16(2, 5, 6);
        tile_add_bfloat16(3, 5, 7);
    }
    tile_store(0, sums, SUMS_STRIDE);
    tile_store(1, sums + TILE_COLUMNS, SUMS_STRIDE);
    tile_store(2, sums + TILE_ROWS * PANEL, SUMS_STRIDE);
    tile_store(3, sums + TILE_ROWS * PANEL + TILE_COLUMNS, SUMS_STRIDE);
}

/* The rows of a unit; tile_rows is TILE_ROWS, or the number of all rows of the call if those are fewer. */
static void multiply_unit(const struct product *product, struct unit unit, size_t tile_rows)
{
    const struct linear *linear = product->call->linear;
    float sums[2 * TILE_ROWS * PANEL] __attribute__((aligned(64)));
    struct strip strip = {.num_steps = linear->num_k / K_UNIT, .is_first = true};
    strip.weights = (const char *)linear->panels + unit.panel * strip.num_steps * STEP_BYTES;
    size_t num_done = 0;
    while (num_done < unit.num_rows) {
        size_t num_left = unit.num_rows - num_done;
        bool is_double = num_left >= 2 * TILE_ROWS;
        size_t num_new = min_size(num_left, is_double ? 2 * TILE_ROWS : tile_rows);
        size_t num_repeated = is_double ? 0 : tile_rows - num_new;
        size_t row = unit.row + num_done;
        const char *x = product->x + (row - num_repeated) * product->x_bytes;
        if (is_double)
            multiply_two_tiles(x, product->x_bytes, strip, sums);
        else
            multiply_one_tile(x, product->x_bytes, strip, sums);
        store_outputs(product->call, unit.panel, row, num_new, sums + num_repeated * PANEL);
        num_done += num_new;
        strip.is_first = false;
    }
}

static void multiply(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct product *product = op;
    size_t tile_rows = min_size(product->call->num_rows, TILE_ROWS);
    (void)thread;
    tiles_begin(tile_rows, K_BYTES);
    for (size_t index = begin; index < end; index++)
        multiply_unit(product, unit_at(product->call, index), tile_rows);
    tiles_end();
}

int KERNEL(multiply_bfloat16)(struct pool *pool, const struct linear_call *call)
{
    const uint16_t *rounded = round_inputs(pool, call);
    if (rounded == NULL)
        return OUT_OF_MEMORY;
    struct product product = {call, (const char *)rounded, rounded_stride(call->linear->num_in) * sizeof(uint16_t)};
    pool_run(pool, num_units(call), grain_for(call->linear->num_in * 4), multiply, &product);
    return OK;
}

#endif
