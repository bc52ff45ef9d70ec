/* Mamba-2's recurrence for one token a row (arXiv:2405.21060).
 *
 * A unit of work is a block of ROWS rows of one head's state in one decode row. Lanes run along the state
 * size, which is contiguous; the sum over it has the fixed order of struct sum.
 */
#include "ssd.h"

enum { ROWS = 32 };

struct update {
    const struct ssd *op;
    struct rows rows;
    size_t blocks_per_head;
    float *zeros; /* (state_size): what a row of slot 0 stands for when read */
};

/* Advances one row of the state and returns its product with C. */
INLINE float advance(const float *from, float *to, size_t state_size, float decay, float inflow, const float *B,
                     const float *C)
{
    struct sum sum = {0};
    for (size_t n = 0, part = 0; n < state_size; n += WIDTH, part = (part + 1) % (SUM_LANES / WIDTH)) {
        size_t count = state_size - n;
        lanes entering = broadcast(inflow) * load_first(B + n, count);
        lanes state = fused(broadcast(decay), load_first(from + n, count), entering);
        store_first(to + n, state, count);
        /* Loaded anew, because lanes beyond the state are not 0 but NaN if decay or inflow is infinite. */
        sum.parts[part] = fused(load_first(to + n, count), load_first(C + n, count), sum.parts[part]);
    }
    return total(sum);
}

static void update_block(const struct update *update, struct span span, size_t head, size_t first_row)
{
    const struct ssd *op = update->op;
    size_t token = span.first_token;
    lanes dt = ssd_step_size(op, head, broadcast(op->dt[token * op->dt_stride + head]));
    float decay = exp_lanes(dt * op->A[head])[0];
    const float *x = op->x + token * op->x_stride + head * op->head_size;
    const float *B = op->B + token * op->B_stride + ssd_group(op, head) * op->state_size;
    const float *C = op->C + token * op->C_stride + ssd_group(op, head) * op->state_size;
    float *out = op->out + (token * op->num_heads + head) * op->head_size;
    for (size_t row = first_row; row < min_size(first_row + ROWS, op->head_size); row++) {
        const float *from = span.read_slot == 0 ? update->zeros : ssd_slot(op, span.read_slot, head, row);
        float *to = ssd_slot(op, span.write_slot, head, row);
        float y = advance(from, to, op->state_size, decay, dt[0] * x[row], B, C);
        out[row] = y + op->D[head] * x[row];
    }
}

static void update_units(const void *argument, size_t begin, size_t end, size_t thread)
{
    const struct update *update = argument;
    const struct ssd *op = update->op;
    size_t units_per_row = op->num_heads * update->blocks_per_head;
    (void)thread;
    for (size_t unit = begin; unit < end; unit++) {
        size_t row = unit / units_per_row, block = unit % units_per_row;
        size_t head = block / update->blocks_per_head, first_row = block % update->blocks_per_head * ROWS;
        if (is_padding(&update->rows, row))
            memset(op->out + (row * op->num_heads + head) * op->head_size + first_row, 0,
                   min_size(ROWS, op->head_size - first_row) * sizeof(float));
        else
            update_block(update, row_span(&update->rows, row), head, first_row);
    }
}

/* Tokens are rows here. */
EXPORT int KERNEL(ssd_state_update)(struct pool *pool, const struct ssd *op, const int32_t *read_slots,
                                    const int32_t *write_slots)
{
    struct update update = {op,
                            {op->num_tokens, read_slots, write_slots},
                            divide_up(op->head_size, ROWS),
                            pool_scratch(pool, op->state_size)};
    enum status status = check_rows(&update.rows, op->num_slots);
    if (status != OK)
        return status;
    if (update.zeros == NULL)
        return OUT_OF_MEMORY;
    memset(update.zeros, 0, op->state_size * sizeof(float));
    pool_run(pool, op->num_tokens * op->num_heads * update.blocks_per_head, grain_for(ROWS * op->state_size),
             update_units, &update);
    return OK;
}
