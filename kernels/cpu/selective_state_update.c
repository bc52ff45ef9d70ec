/* Mamba-1's recurrence for one token a row: see selective.h. A unit of work is a block of channels of a row.
 *
 * The numbers of a unit's states are taken in the order in which they lie in memory and fetched STATES_AHEAD
 * states ahead, across units. Blocks are long, and short only where rows are fewer than threads.
 */
#include "selective.h"

enum { MAX_CHANNELS = 2048, CHANNELS_OF_FEW_ROWS = 512, STATES_AHEAD = 2, CACHE_LINE_BYTES = 64 };

/* Tokens are rows here. */
struct selective_state_update_call {
    struct selective selective;
    struct rows rows;
};

struct update {
    const struct selective *op;
    const struct rows *rows;
    size_t max_channels; /* of a unit */
    size_t num_blocks;
};

/* Channels of one row. */
struct unit {
    size_t row;
    size_t channel;
    size_t num_channels;
    size_t read_slot; /* 0: a state of zeros */
    size_t write_slot;
};

/* Of the channels of a unit. */
struct work {
    float exponent[MAX_CHANNELS];
    float inflow[MAX_CHANNELS];
    float y[MAX_CHANNELS];
};

static struct unit unit_at(const struct update *update, size_t index)
{
    size_t row = index / update->num_blocks, channel = index % update->num_blocks * update->max_channels;
    struct span span = row_span(update->rows, row);
    return (struct unit){row, channel, min_size(update->max_channels, update->op->num_channels - channel),
                         span.read_slot, span.write_slot};
}

/* Index of a unit's first number of state n in a slot. */
static size_t state_index(const struct selective *op, size_t slot, const struct unit *unit, size_t n)
{
    return (slot * op->state_size + n) * op->num_channels + unit->channel;
}

static void fetch(const struct selective *op, const struct unit *unit, size_t n)
{
    if (unit->read_slot == 0 || n >= op->state_size)
        return;
    size_t size = op->state_is_bfloat16 ? sizeof(uint16_t) : sizeof(float);
    const char *from = (const char *)op->state + state_index(op, unit->read_slot, unit, n) * size;
    for (size_t i = 0; i < unit->num_channels * size; i += CACHE_LINE_BYTES)
        __builtin_prefetch(from + i, 1);
}

/* What advances one state of a unit's channels: values, which the stores to it can't be thought to change. */
struct column {
    void *state;
    size_t from; /* indices in state; `from` counts only if is_read */
    size_t to;
    bool is_read;
    bool is_bfloat16;
    const float *A;
    float B;
    float C;
};

/* Advances WIDTH or fewer channels, the first of them `lane`. */
INLINE void advance(struct column column, struct work *work, size_t lane, size_t count)
{
    struct selective_step step = {load(work->exponent + lane), load(work->inflow + lane)};
    lanes y = load(work->y + lane), state = {0};
    if (column.is_read)
        state = load_state(column.state, column.is_bfloat16, column.from + lane, count);
    state = selective_advance(step, state, load_first(column.A + lane, count), column.B, column.C, &y);
    store_state(column.state, column.is_bfloat16, column.to + lane, state, count);
    store(work->y + lane, y);
}

INLINE void advance_all(const struct selective *op, bool is_bfloat16, const struct unit *unit,
                        const struct unit *next, struct work *work)
{
    for (size_t n = 0; n < op->state_size; n++) {
        size_t ahead = n + STATES_AHEAD, lane = 0, num_channels = unit->num_channels;
        if (ahead < op->state_size)
            fetch(op, unit, ahead);
        else
            fetch(op, next, ahead - op->state_size);
        struct column column = {op->state,
                                state_index(op, unit->read_slot, unit, n),
                                state_index(op, unit->write_slot, unit, n),
                                unit->read_slot != 0,
                                is_bfloat16,
                                op->A + n * op->num_channels + unit->channel,
                                op->B[unit->row * op->B_stride + n],
                                op->C[unit->row * op->C_stride + n]};
        for (; lane + WIDTH <= num_channels; lane += WIDTH)
            advance(column, work, lane, WIDTH);
        if (lane < num_channels)
            advance(column, work, lane, num_channels - lane);
    }
}

static void update_unit(const struct selective *op, const struct unit *unit, const struct unit *next)
{
    struct work work;
    for (size_t lane = 0; lane < unit->num_channels; lane += WIDTH) {
        struct selective_step step =
            selective_step(op, unit->row, unit->channel + lane, unit->num_channels - lane);
        store(work.exponent + lane, step.exponent);
        store(work.inflow + lane, step.inflow);
        store(work.y + lane, (lanes){0});
    }
    if (op->state_is_bfloat16)
        advance_all(op, true, unit, next, &work);
    else
        advance_all(op, false, unit, next, &work);
    for (size_t lane = 0; lane < unit->num_channels; lane += WIDTH)
        selective_output(op, unit->row, unit->channel + lane, unit->num_channels - lane, load(work.y + lane));
}

static void update_units(const void *argument, size_t begin, size_t end, size_t thread)
{
    const struct update *update = argument;
    const struct selective *op = update->op;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        struct unit unit = unit_at(update, i), next = i + 1 < end ? unit_at(update, i + 1) : (struct unit){0};
        if (is_padding(update->rows, unit.row))
            memset(op->out + unit.row * op->num_channels + unit.channel, 0, unit.num_channels * sizeof(float));
        else
            update_unit(op, &unit, &next);
    }
}

EXPORT int KERNEL(selective_state_update)(struct pool *pool, const struct selective_state_update_call *call)
{
    const struct selective *op = &call->selective;
    enum status status = check_rows(&call->rows, op->num_tokens, op->num_slots);
    if (status != OK)
        return status;
    size_t max_channels = op->num_tokens < pool_num_threads(pool) ? CHANNELS_OF_FEW_ROWS : MAX_CHANNELS;
    struct update update = {op, &call->rows, max_channels, divide_up(op->num_channels, max_channels)};
    pool_run(pool, op->num_tokens * update.num_blocks, grain_for(op->state_size * max_channels * 4), update_units,
             &update);
    return OK;
}
