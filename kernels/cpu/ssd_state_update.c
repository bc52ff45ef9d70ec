/* Mamba-2's recurrence for one token a row (arXiv:2405.21060).
 *
 * A unit of work is a block of ROWS rows of one head's state in one decode row. Lanes run along the state
 * size, which is contiguous; the sum over it has the fixed order of struct sum. The sums of SUM_ROWS rows are
 * added up together: their parts are transposed, so that lanes are rows.
 */
#include "ssd.h"
#include "transpose.h"

enum { ROWS = 32, SUM_ROWS = 16 };

/* Tokens are rows here. */
struct ssd_state_update_call {
    struct ssd ssd;
    struct rows rows;
};

struct update {
    const struct ssd *op;
    const struct rows *rows;
    size_t blocks_per_head;
};

/* What the rows of a head have in common. */
struct step {
    float dt;
    float decay;
    const float *B;
    const float *C;
};

/* Advances `count` (at most WIDTH) numbers of a row, from n on, and returns their products with C added to sum. */
INLINE lanes advance_lanes(void *state, bool is_bfloat16, struct step step, lanes inflow, const size_t *from, size_t to,
                           size_t n, size_t count, lanes sum)
{
    lanes old = {0}, entering = inflow * load_first(step.B + n, count);
    if (from != NULL)
        old = load_state(state, is_bfloat16, *from + n, count);
    lanes new = fused(broadcast(step.decay), old, entering);
    store_state(state, is_bfloat16, to + n, new, count);
    /* Cut, because lanes beyond the state are not 0 but NaN if decay or inflow is infinite. */
    return fused(first_lanes(new, count), load_first(step.C + n, count), sum);
}

/* Advances one row of the state and writes the parts of its product with C. */
INLINE void advance(void *state, size_t state_size, bool is_bfloat16, struct step step, float inflow,
                    const size_t *from, size_t to, float *parts)
{
    struct sum sum = {0};
    lanes all = broadcast(inflow);
    size_t n = 0;
    for (; n + SUM_LANES <= state_size; n += SUM_LANES)
        for (size_t part = 0; part < SUM_LANES / WIDTH; part++)
            sum.parts[part] = advance_lanes(state, is_bfloat16, step, all, from, to, n + part * WIDTH, WIDTH,
                                            sum.parts[part]);
    for (size_t part = 0; n < state_size; part++, n += WIDTH)
        sum.parts[part] =
            advance_lanes(state, is_bfloat16, step, all, from, to, n, state_size - n, sum.parts[part]);
    memcpy(parts, &sum, sizeof sum);
}

/* totals[row] = the total of the SUM_LANES parts of each row, in the order of total(). */
static void add_parts(const float *parts, float *totals)
{
    float columns[SUM_LANES][SUM_ROWS];
    transpose(parts, SUM_LANES, columns[0], SUM_ROWS, SUM_ROWS, SUM_LANES);
    for (size_t half = SUM_LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            for (size_t row = 0; row < SUM_ROWS; row += WIDTH)
                store(&columns[i][row], load(&columns[i][row]) + load(&columns[i + half][row]));
    memcpy(totals, columns[0], SUM_ROWS * sizeof(float));
}

/* At most SUM_ROWS rows of a head. */
INLINE void update_rows(const struct ssd *op, bool is_bfloat16, struct span span, struct step step, size_t head,
                        size_t first_row, size_t num_rows)
{
    const float *x = op->x + span.first_token * op->x_stride + head * op->head_size + first_row;
    float *out = op->out + (span.first_token * op->num_heads + head) * op->head_size + first_row;
    size_t from = ssd_state_index(op, span.read_slot, head, first_row);
    size_t to = ssd_state_index(op, span.write_slot, head, first_row);
    void *state = op->state;
    size_t state_size = op->state_size;
    float parts[SUM_ROWS * SUM_LANES] = {0}, y[SUM_ROWS];
    for (size_t row = 0; row < num_rows; row++, from += state_size, to += state_size)
        advance(state, state_size, is_bfloat16, step, step.dt * x[row], span.read_slot == 0 ? NULL : &from, to,
                parts + row * SUM_LANES);
    add_parts(parts, y);
    for (size_t row = 0; row < num_rows; row++)
        out[row] = y[row] + op->D[head] * x[row];
}

static void update_block(const struct ssd *op, struct span span, size_t head, size_t first_row)
{
    size_t token = span.first_token, group_start = ssd_group(op, head) * op->state_size;
    lanes dt = ssd_step_size(op, head, broadcast(op->dt[token * op->dt_stride + head]));
    struct step step = {dt[0], exp_lanes(dt * op->A[head])[0], op->B + token * op->B_stride + group_start,
                        op->C + token * op->C_stride + group_start};
    size_t end_row = min_size(first_row + ROWS, op->head_size);
    for (size_t row = first_row; row < end_row; row += SUM_ROWS)
        if (op->state_is_bfloat16)
            update_rows(op, true, span, step, head, row, min_size(SUM_ROWS, end_row - row));
        else
            update_rows(op, false, span, step, head, row, min_size(SUM_ROWS, end_row - row));
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
        if (is_padding(update->rows, row))
            memset(op->out + (row * op->num_heads + head) * op->head_size + first_row, 0,
                   min_size(ROWS, op->head_size - first_row) * sizeof(float));
        else
            update_block(op, row_span(update->rows, row), head, first_row);
    }
}

EXPORT int KERNEL(ssd_state_update)(struct pool *pool, const struct ssd_state_update_call *call)
{
    const struct ssd *op = &call->ssd;
    struct update update = {op, &call->rows, divide_up(op->head_size, ROWS)};
    enum status status = check_rows(&call->rows, op->num_tokens, op->num_slots);
    if (status != OK)
        return status;
    pool_run(pool, op->num_tokens * op->num_heads * update.blocks_per_head, grain_for(ROWS * op->state_size),
             update_units, &update);
    return OK;
}
