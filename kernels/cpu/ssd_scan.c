/* Mamba-2's scan over chunks (arXiv:2405.21060), as the recurrence and not as the paper's matrix products.
 *
 * In float32 without matrix instructions the recurrence takes about as many multiplications as the products,
 * and its order of summation does not depend on the chunk's length.
 *
 * A unit of work is a block of ROWS rows of a head's (head_size, state_size) state; a thread takes its blocks
 * through all chunks in order. The block stands transposed in scratch, so that lanes are rows of the head and
 * the sum over the state size needs no sum over lanes.
 */
#include "ssd.h"
#include "transpose.h"

enum { ROWS = 2 * WIDTH };

struct scan {
    const struct ssd *op;
    const struct chunks *chunks;
    size_t blocks_per_head;
    float *scratch; /* of each thread: (state_size, ROWS) */
};

/* Step sizes and decays of one head for the tokens of a chunk. */
struct steps {
    float dt[MAX_CHUNK_TOKENS];
    float decay[MAX_CHUNK_TOKENS];
};

static void compute_steps(const struct ssd *op, struct span span, size_t head, struct steps *steps)
{
    for (size_t i = 0; i < span.num_tokens; i++)
        steps->dt[i] = op->dt[(span.first_token + i) * op->dt_stride + head];
    for (size_t i = 0; i < span.num_tokens; i += WIDTH) {
        size_t count = span.num_tokens - i;
        lanes dt = ssd_step_size(op, head, load_first(steps->dt + i, count));
        store_first(steps->dt + i, dt, count);
        store_first(steps->decay + i, exp_lanes(dt * op->A[head]), count);
    }
}

/* Column n of the block: state = decay * state + inflow * B[n], and state * C[n] is added to the sums. */
INLINE void advance_column(float *column, lanes decay, const lanes inflow[2], float B, float C, lanes sums[2])
{
    for (size_t half = 0; half < 2; half++) {
        lanes state = fused(decay, load(column + half * WIDTH), inflow[half] * B);
        store(column + half * WIDTH, state);
        sums[half] = fused(state, broadcast(C), sums[half]);
    }
}

/* Advances the block by one token; y becomes its product with C. Even and odd n have sums of their own, so
 * that one addition need not wait for the last. */
INLINE void advance(float *state, size_t state_size, lanes decay, const lanes inflow[2], const float *B,
                    const float *C, lanes y[2])
{
    lanes even[2] = {{0}}, odd[2] = {{0}};
    size_t n = 0;
    for (; n + 2 <= state_size; n += 2) {
        advance_column(state + n * ROWS, decay, inflow, B[n], C[n], even);
        advance_column(state + (n + 1) * ROWS, decay, inflow, B[n + 1], C[n + 1], odd);
    }
    if (n < state_size)
        advance_column(state + n * ROWS, decay, inflow, B[n], C[n], even);
    y[0] = even[0] + odd[0];
    y[1] = even[1] + odd[1];
}

static void scan_tokens(const struct ssd *op, struct span span, const struct steps *steps, size_t head, size_t row,
                        size_t num_rows, float *state)
{
    size_t group_start = ssd_group(op, head) * op->state_size;
    for (size_t i = 0; i < span.num_tokens; i++) {
        size_t token = span.first_token + i;
        const float *B = op->B + token * op->B_stride + group_start, *C = op->C + token * op->C_stride + group_start;
        const float *x = op->x + token * op->x_stride + head * op->head_size + row;
        lanes inflow[2], y[2], inputs[2];
        for (size_t half = 0; half < 2; half++) {
            size_t count = num_rows > half * WIDTH ? num_rows - half * WIDTH : 0;
            inputs[half] = load_first(x + half * WIDTH, count);
            inflow[half] = broadcast(steps->dt[i]) * inputs[half];
        }
        advance(state, op->state_size, broadcast(steps->decay[i]), inflow, B, C, y);
        float *out = op->out + (token * op->num_heads + head) * op->head_size + row;
        for (size_t half = 0; half < 2; half++) {
            size_t count = num_rows > half * WIDTH ? num_rows - half * WIDTH : 0;
            store_first(out + half * WIDTH, fused(broadcast(op->D[head]), inputs[half], y[half]), count);
        }
    }
}

static void scan_block(const struct ssd *op, struct span span, const struct steps *steps, size_t head, size_t row,
                       float *state)
{
    size_t num_rows = min_size(ROWS, op->head_size - row);
    if (span.read_slot == 0 || num_rows < ROWS)
        memset(state, 0, op->state_size * ROWS * sizeof(float));
    if (span.read_slot != 0)
        transpose(ssd_slot(op, span.read_slot, head, row), op->state_size, state, ROWS, num_rows, op->state_size);
    scan_tokens(op, span, steps, head, row, num_rows, state);
    if (span.write_slot != 0)
        transpose(state, ROWS, ssd_slot(op, span.write_slot, head, row), op->state_size, op->state_size, num_rows);
    if (span.checkpoint_slot != 0)
        transpose(state, ROWS, ssd_slot(op, span.checkpoint_slot, head, row), op->state_size, op->state_size,
                  num_rows);
}

static void scan_blocks(const void *argument, size_t begin, size_t end, size_t thread)
{
    const struct scan *scan = argument;
    float *state = scan->scratch + thread * scan->op->state_size * ROWS;
    for (size_t i = 0; i < scan->chunks->num_chunks; i++) {
        struct span span = chunk_span(scan->chunks, i);
        struct steps steps;
        for (size_t block = begin; block < end; block++) {
            size_t head = block / scan->blocks_per_head, index = block % scan->blocks_per_head;
            if (block == begin || index == 0)
                compute_steps(scan->op, span, head, &steps);
            scan_block(scan->op, span, &steps, head, index * ROWS, state);
        }
    }
}

EXPORT int KERNEL(ssd_scan)(struct pool *pool, const struct ssd *op, const struct chunks *chunks)
{
    enum status status = check_chunks(chunks, op->num_tokens, op->num_slots);
    if (status != OK)
        return status;
    size_t block_floats = op->state_size * ROWS;
    struct scan scan = {op, chunks, divide_up(op->head_size, ROWS),
                        pool_scratch(pool, block_floats * pool_num_threads(pool))};
    if (scan.scratch == NULL)
        return OUT_OF_MEMORY;
    pool_run(pool, op->num_heads * scan.blocks_per_head, grain_for(op->num_tokens * block_floats), scan_blocks,
             &scan);
    return OK;
}
