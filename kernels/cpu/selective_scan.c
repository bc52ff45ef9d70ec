/* Mamba-1's selective scan over chunks (arXiv:2312.00752, algorithm 2); one token's step is in selective.h.
 *
 * A unit of work is a block of channels; a thread takes its channels through all chunks in order. Within a
 * chunk the state of a block stays in the first-level cache.
 */
#include "selective.h"

struct scan {
    const struct selective *op;
    const struct chunks *chunks;
    float *scratch; /* of each thread: (state_size, SELECTIVE_CHANNELS) */
};

static void copy_state(const struct selective *op, struct selective_state from, struct selective_state to,
                       size_t num_channels)
{
    for (size_t n = 0; n < op->state_size; n++)
        memcpy(to.values + n * to.stride, from.values + n * from.stride, num_channels * sizeof(float));
}

static void scan_block(const struct selective *op, struct span span, size_t channel, struct selective_state state)
{
    size_t num_channels = min_size(SELECTIVE_CHANNELS, op->num_channels - channel);
    if (span.read_slot != 0)
        copy_state(op, selective_slot(op, span.read_slot, channel), state, num_channels);
    else
        memset(state.values, 0, op->state_size * state.stride * sizeof(float));
    for (size_t i = 0; i < span.num_tokens; i++)
        selective_token(op, span.first_token + i, channel, num_channels, state, state);
    if (span.write_slot != 0)
        copy_state(op, state, selective_slot(op, span.write_slot, channel), num_channels);
    if (span.checkpoint_slot != 0)
        copy_state(op, state, selective_slot(op, span.checkpoint_slot, channel), num_channels);
}

static void scan_channels(const void *argument, size_t begin, size_t end, size_t thread)
{
    const struct scan *scan = argument;
    const struct selective *op = scan->op;
    struct selective_state state = {scan->scratch + thread * op->state_size * SELECTIVE_CHANNELS, SELECTIVE_CHANNELS};
    for (size_t i = 0; i < scan->chunks->num_chunks; i++)
        for (size_t block = begin; block < end; block++)
            scan_block(op, chunk_span(scan->chunks, i), block * SELECTIVE_CHANNELS, state);
}

EXPORT int KERNEL(selective_scan)(struct pool *pool, const struct selective *op, const struct chunks *chunks)
{
    enum status status = check_chunks(chunks, op->num_tokens, op->num_slots);
    if (status != OK)
        return status;
    size_t block_floats = op->state_size * SELECTIVE_CHANNELS;
    struct scan scan = {op, chunks, pool_scratch(pool, block_floats * pool_num_threads(pool))};
    if (scan.scratch == NULL)
        return OUT_OF_MEMORY;
    size_t cost = op->num_tokens * block_floats * 4;
    pool_run(pool, divide_up(op->num_channels, SELECTIVE_CHANNELS), grain_for(cost), scan_channels, &scan);
    return OK;
}
