/* Mamba-1's selective scan over chunks (arXiv:2312.00752, algorithm 2); one token's step is in selective.h.
 *
 * A unit of work is a block of channels; a thread takes its channels through all chunks in order. WIDTH channels
 * take STATES states at a time through all tokens of a chunk, so that these stay in registers.
 */
#include "selective.h"

enum { CHANNELS = 32, STATES = 16 };

struct selective_scan_call {
    struct selective selective;
    struct chunks chunks;
};

struct scan {
    const struct selective *op;
    const struct chunks *chunks;
    size_t scratch_floats;
    float *scratch; /* of each thread: see struct memory */
};

/* Working memory of a block; rows are CHANNELS apart. What lies beyond num_channels is 0 or nobody's. */
struct memory {
    float *A;        /* (state_size, CHANNELS) */
    float *state;    /* (state_size, CHANNELS) */
    float *exponent; /* (MAX_CHUNK_TOKENS, CHANNELS) */
    float *inflow;
    float *y;
};

static struct memory memory_of(const struct scan *scan, size_t thread)
{
    size_t state_floats = scan->op->state_size * CHANNELS, token_floats = MAX_CHUNK_TOKENS * CHANNELS;
    struct memory memory = {.A = scan->scratch + thread * scan->scratch_floats};
    memory.state = memory.A + state_floats;
    memory.exponent = memory.state + state_floats;
    memory.inflow = memory.exponent + token_floats;
    memory.y = memory.inflow + token_floats;
    return memory;
}

static size_t channels_from(const struct selective *op, size_t channel)
{
    return min_size(CHANNELS, op->num_channels - channel);
}

static void copy_A(const struct selective *op, size_t channel, float *to)
{
    for (size_t n = 0; n < op->state_size; n++)
        memcpy(to + n * CHANNELS, op->A + n * op->num_channels + channel, channels_from(op, channel) * sizeof(float));
}

static void read_slot(const struct selective *op, size_t slot, size_t channel, float *to)
{
    if (slot == 0)
        memset(to, 0, op->state_size * CHANNELS * sizeof(float));
    for (size_t n = 0; slot != 0 && n < op->state_size; n++)
        widen_state(op->state, op->state_is_bfloat16, (slot * op->state_size + n) * op->num_channels + channel,
                    to + n * CHANNELS, channels_from(op, channel));
}

static void write_slot(const struct selective *op, size_t slot, size_t channel, const float *from)
{
    for (size_t n = 0; slot != 0 && n < op->state_size; n++)
        narrow_state(from + n * CHANNELS, op->state, op->state_is_bfloat16,
                     (slot * op->state_size + n) * op->num_channels + channel, channels_from(op, channel));
}

static void compute_steps(const struct selective *op, struct span span, size_t channel, struct memory memory)
{
    size_t num_channels = channels_from(op, channel);
    for (size_t i = 0; i < span.num_tokens; i++)
        for (size_t lane = 0; lane < num_channels; lane += WIDTH) {
            struct selective_step step =
                selective_step(op, span.first_token + i, channel + lane, num_channels - lane);
            store(memory.exponent + i * CHANNELS + lane, step.exponent);
            store(memory.inflow + i * CHANNELS + lane, step.inflow);
        }
}

/* Takes num_states (a constant) states of WIDTH channels, the first at `memory`, through the tokens. */
INLINE void scan_states(const struct selective *op, struct span span, size_t first_state, size_t num_states,
                        struct memory memory)
{
    const float *A = memory.A + first_state * CHANNELS;
    const float *B = op->B + span.first_token * op->B_stride + first_state;
    const float *C = op->C + span.first_token * op->C_stride + first_state;
    float *to = memory.state + first_state * CHANNELS;
    lanes state[STATES];
#pragma GCC unroll 16
    for (size_t n = 0; n < num_states; n++)
        state[n] = load(to + n * CHANNELS);
    for (size_t i = 0; i < span.num_tokens; i++, B += op->B_stride, C += op->C_stride) {
        struct selective_step step = {load(memory.exponent + i * CHANNELS), load(memory.inflow + i * CHANNELS)};
        lanes y = {0};
        if (first_state != 0)
            y = load(memory.y + i * CHANNELS);
#pragma GCC unroll 16
        for (size_t n = 0; n < num_states; n++)
            state[n] = selective_advance(step, state[n], load(A + n * CHANNELS), B[n], C[n], &y);
        store(memory.y + i * CHANNELS, y);
    }
#pragma GCC unroll 16
    for (size_t n = 0; n < num_states; n++)
        store(to + n * CHANNELS, state[n]);
}

static void scan_lanes(const struct selective *op, struct span span, struct memory memory)
{
    size_t n = 0;
    for (; n + STATES <= op->state_size; n += STATES)
        scan_states(op, span, n, STATES, memory);
    for (; n < op->state_size; n++)
        scan_states(op, span, n, 1, memory);
}

static void write_outputs(const struct selective *op, struct span span, size_t channel, const float *y)
{
    size_t num_channels = channels_from(op, channel);
    for (size_t i = 0; i < span.num_tokens; i++, y += CHANNELS)
        for (size_t lane = 0; lane < num_channels; lane += WIDTH)
            selective_output(op, span.first_token + i, channel + lane, num_channels - lane, load(y + lane));
}

static void scan_block(const struct selective *op, struct span span, size_t channel, struct memory memory)
{
    read_slot(op, span.read_slot, channel, memory.state);
    compute_steps(op, span, channel, memory);
    for (size_t lane = 0; lane < channels_from(op, channel); lane += WIDTH) {
        struct memory part = {memory.A + lane, memory.state + lane, memory.exponent + lane, memory.inflow + lane,
                              memory.y + lane};
        scan_lanes(op, span, part);
    }
    write_outputs(op, span, channel, memory.y);
    write_slot(op, span.write_slot, channel, memory.state);
    write_slot(op, span.checkpoint_slot, channel, memory.state);
}

static void scan_channels(const void *argument, size_t begin, size_t end, size_t thread)
{
    const struct scan *scan = argument;
    const struct selective *op = scan->op;
    struct memory memory = memory_of(scan, thread);
    memset(memory.A, 0, 2 * op->state_size * CHANNELS * sizeof(float));
    for (size_t block = begin; block < end; block++) {
        size_t channel = block * CHANNELS;
        copy_A(op, channel, memory.A);
        for (size_t i = 0; i < scan->chunks->num_chunks; i++)
            scan_block(op, chunk_span(scan->chunks, i), channel, memory);
    }
}

EXPORT int KERNEL(selective_scan)(struct pool *pool, const struct selective_scan_call *call)
{
    const struct selective *op = &call->selective;
    const struct chunks *chunks = &call->chunks;
    enum status status = check_chunks(chunks, op->num_tokens, op->num_slots);
    if (status != OK)
        return status;
    size_t floats = (2 * op->state_size + 3 * MAX_CHUNK_TOKENS) * CHANNELS;
    struct scan scan = {op, chunks, floats, pool_scratch(pool, floats * pool_num_threads(pool))};
    if (scan.scratch == NULL)
        return OUT_OF_MEMORY;
    size_t cost = op->num_tokens * op->state_size * CHANNELS * 2;
    pool_run(pool, divide_up(op->num_channels, CHANNELS), grain_for(cost), scan_channels, &scan);
    return OK;
}
