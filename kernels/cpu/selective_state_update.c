/* Mamba-1's recurrence for one token a row: see selective.h. A unit of work is a block of channels of a row. */
#include "selective.h"

struct update {
    const struct selective *op;
    struct rows rows;
    size_t num_blocks;
    float *zeros; /* (state_size, SELECTIVE_CHANNELS): what slot 0 stands for when read */
};

static void update_units(const void *argument, size_t begin, size_t end, size_t thread)
{
    const struct update *update = argument;
    const struct selective *op = update->op;
    (void)thread;
    for (size_t unit = begin; unit < end; unit++) {
        size_t row = unit / update->num_blocks, channel = unit % update->num_blocks * SELECTIVE_CHANNELS;
        size_t num_channels = min_size(SELECTIVE_CHANNELS, op->num_channels - channel);
        if (is_padding(&update->rows, row)) {
            memset(op->out + row * op->num_channels + channel, 0, num_channels * sizeof(float));
            continue;
        }
        struct span span = row_span(&update->rows, row);
        struct selective_state from = {update->zeros, SELECTIVE_CHANNELS};
        if (span.read_slot != 0)
            from = selective_slot(op, span.read_slot, channel);
        selective_token(op, row, channel, num_channels, from, selective_slot(op, span.write_slot, channel));
    }
}

/* Tokens are rows here. */
EXPORT int KERNEL(selective_state_update)(struct pool *pool, const struct selective *op, const int32_t *read_slots,
                                          const int32_t *write_slots)
{
    size_t block_floats = op->state_size * SELECTIVE_CHANNELS;
    struct update update = {op,
                            {op->num_tokens, read_slots, write_slots},
                            divide_up(op->num_channels, SELECTIVE_CHANNELS),
                            pool_scratch(pool, block_floats)};
    enum status status = check_rows(&update.rows, op->num_slots);
    if (status != OK)
        return status;
    if (update.zeros == NULL)
        return OUT_OF_MEMORY;
    memset(update.zeros, 0, block_floats * sizeof(float));
    pool_run(pool, op->num_tokens * update.num_blocks, grain_for(block_floats * 4), update_units, &update);
    return OK;
}
