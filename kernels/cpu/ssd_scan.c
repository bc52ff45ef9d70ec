/* Mamba-2's scan over chunks (arXiv:2405.21060, listing 1), in runs of RUN tokens.
 *
 * With d[t] = exp(dt[t] A), S the state before a run and tokens counted from the run's start,
 *   y[t] = d[0]...d[t] S C[t] + sum over j <= t of mix[t][j] x[j] + D x[t],
 *   mix[t][j] = d[j + 1]...d[t] dt[j] (B[j] . C[t]),
 * and the state after it is d[0]...d[last] S + sum over j of d[j + 1]...d[last] dt[j] x[j] B[j]^T. So the state is
 * loaded, scaled and stored once a run, and a token costs two multiplications for each of its elements instead
 * of the recurrence's three. Longer runs would save little and need more registers. Runs are cut from the
 * chunk's first token on; the last one is filled up with tokens that change nothing.
 *
 * A unit of work is a head, which walks through the chunks in order. Its state stands transposed in scratch, in
 * blocks of ROWS of its rows, so that lanes are rows and the sum over the state size needs no sum over lanes;
 * it stays there from chunk to chunk as long as they read what the one before wrote. What the heads of a group
 * share is made ready by each thread for ROUND chunks at a time. A bfloat16 state is rounded after each chunk.
 */
#include "ssd.h"
#include "transpose.h"

enum {
    RUN = 4,
    HALVES = 2,
    ROWS = HALVES * WIDTH,
    ROUND = 4,
    MAX_RUNS = MAX_CHUNK_TOKENS / RUN,
};

struct ssd_scan_call {
    struct ssd ssd;
    struct chunks chunks;
};

struct scan {
    const struct ssd *op;
    const struct chunks *chunks;
    size_t scratch_floats;
    float *scratch; /* of each thread: see struct memory */
};

/* What the heads of a group share in a chunk; zeros beyond its end. */
struct shared {
    float *inputs;   /* [run][n]: C[n] of the run's tokens, then B[n] */
    float *products; /* [run][token][j]: B[j] . C[token] */
};

/* Factors of one head for the tokens of a chunk, in runs; beyond the chunk steps are 0. */
struct steps {
    float dt[MAX_RUNS * RUN];
    float decay[MAX_RUNS * RUN];
    float from_start[MAX_RUNS][RUN];
    float until_end[MAX_RUNS][RUN]; /* times dt */
    float mix[MAX_RUNS][RUN][RUN];
};

static size_t inputs_floats(const struct ssd *op)
{
    return MAX_RUNS * op->state_size * 2 * RUN;
}

static size_t shared_floats(const struct ssd *op)
{
    return inputs_floats(op) + MAX_RUNS * RUN * RUN;
}

static size_t state_floats(const struct ssd *op)
{
    return divide_up(op->head_size, ROWS) * ROWS * op->state_size;
}

/* A thread's scratch: state_floats for a head's state, ROWS * state_size to convert it, then the shared. */
static struct shared shared_of(const struct ssd *op, float *memory, size_t index_in_round)
{
    float *inputs = memory + state_floats(op) + ROWS * op->state_size + index_in_round * shared_floats(op);
    return (struct shared){inputs, inputs + inputs_floats(op)};
}

static void pack_inputs(const struct ssd *op, struct span span, size_t group, struct shared shared)
{
    const float *B = op->B + span.first_token * op->B_stride + group * op->state_size;
    const float *C = op->C + span.first_token * op->C_stride + group * op->state_size;
    size_t num_runs = divide_up(span.num_tokens, RUN), num_left = span.num_tokens % RUN;
    float *last = shared.inputs + (num_runs - 1) * op->state_size * 2 * RUN;
    if (num_left != 0)
        memset(last, 0, op->state_size * 2 * RUN * sizeof(float));
    for (size_t run = 0; run < num_runs; run++) {
        size_t count = min_size(RUN, span.num_tokens - run * RUN), token = run * RUN;
        float *to = shared.inputs + run * op->state_size * 2 * RUN;
        transpose(C + token * op->C_stride, op->C_stride, to, 2 * RUN, count, op->state_size);
        transpose(B + token * op->B_stride, op->B_stride, to + RUN, 2 * RUN, count, op->state_size);
        for (size_t i = 0; i < count; i++)
            for (size_t j = 0; j <= i; j++)
                shared.products[(token + i) * RUN + j] =
                    dot(B + (token + j) * op->B_stride, C + (token + i) * op->C_stride, op->state_size);
    }
}

static void compute_steps(const struct ssd *op, struct span span, size_t head, const float *products,
                          struct steps *steps)
{
    memset(steps, 0, sizeof *steps);
    for (size_t i = 0; i < MAX_RUNS * RUN; i++)
        steps->decay[i] = 1.0f;
    for (size_t i = 0; i < span.num_tokens; i++)
        steps->dt[i] = op->dt[(span.first_token + i) * op->dt_stride + head];
    for (size_t i = 0; i < span.num_tokens; i += WIDTH) {
        size_t count = span.num_tokens - i;
        lanes dt = ssd_step_size(op, head, load_first(steps->dt + i, count));
        store_first(steps->dt + i, dt, count);
        store_first(steps->decay + i, exp_lanes(dt * op->A[head]), count);
    }
    for (size_t run = 0; run * RUN < span.num_tokens; run++) {
        const float *decay = steps->decay + run * RUN, *dt = steps->dt + run * RUN;
        float product = 1.0f;
        for (size_t i = 0; i < RUN; i++)
            steps->from_start[run][i] = product *= decay[i];
        for (size_t i = 0; i < min_size(RUN, span.num_tokens - run * RUN); i++) {
            product = 1.0f;
            for (size_t j = i + 1; j-- > 0; product *= decay[j])
                steps->mix[run][i][j] = product * dt[j] * products[(run * RUN + i) * RUN + j];
            steps->mix[run][i][i] += op->D[head];
        }
        product = 1.0f;
        for (size_t j = RUN; j-- > 0; product *= decay[j])
            steps->until_end[run][j] = product * dt[j];
    }
}

/* Multiplies the state before the run with its C, and advances it. */
INLINE void advance(float *state, size_t state_size, const float *inputs, lanes decay,
                    const lanes inflow[RUN][HALVES], lanes y[RUN][HALVES])
{
    for (size_t n = 0; n < state_size; n++, state += ROWS, inputs += 2 * RUN) {
        lanes column[HALVES];
        for (int half = 0; half < HALVES; half++)
            column[half] = load(state + half * WIDTH);
#pragma GCC unroll 8
        for (int i = 0; i < RUN; i++)
            for (int half = 0; half < HALVES; half++)
                y[i][half] = fused(column[half], broadcast(inputs[i]), y[i][half]);
        for (int half = 0; half < HALVES; half++)
            column[half] *= decay;
#pragma GCC unroll 8
        for (int i = 0; i < RUN; i++)
            for (int half = 0; half < HALVES; half++)
                column[half] = fused(inflow[i][half], broadcast(inputs[RUN + i]), column[half]);
        for (int half = 0; half < HALVES; half++)
            store(state + half * WIDTH, column[half]);
    }
}

/* One run for num_rows (a constant if all ROWS) rows of a head. */
INLINE void scan_run(const struct ssd *op, const struct steps *steps, size_t run, size_t count, const float *x,
                     float *out, size_t num_rows, const float *packed, float *state)
{
    lanes inputs[RUN][HALVES] = {{{0}}}, inflow[RUN][HALVES], y[RUN][HALVES] = {{{0}}};
    for (size_t i = 0; i < count; i++)
        for (size_t half = 0; half * WIDTH < num_rows; half++)
            inputs[i][half] = load_first(x + i * op->x_stride + half * WIDTH, num_rows - half * WIDTH);
    for (size_t i = 0; i < RUN; i++)
        for (size_t half = 0; half < HALVES; half++)
            inflow[i][half] = inputs[i][half] * steps->until_end[run][i];
    advance(state, op->state_size, packed, broadcast(steps->from_start[run][RUN - 1]), inflow, y);
    for (size_t i = 0; i < count; i++)
        for (size_t half = 0; half * WIDTH < num_rows; half++) {
            lanes sum = y[i][half] * steps->from_start[run][i];
            for (size_t j = 0; j <= i; j++)
                sum = fused(inputs[j][half], broadcast(steps->mix[run][i][j]), sum);
            store_first(out + i * op->num_heads * op->head_size + half * WIDTH, sum, num_rows - half * WIDTH);
        }
}

static void scan_block(const struct ssd *op, struct span span, const struct steps *steps, size_t head, size_t row,
                       const float *packed, float *state)
{
    size_t num_rows = min_size(ROWS, op->head_size - row);
    for (size_t run = 0; run * RUN < span.num_tokens; run++, packed += op->state_size * 2 * RUN) {
        size_t first = span.first_token + run * RUN, count = min_size(RUN, span.num_tokens - run * RUN);
        const float *x = op->x + first * op->x_stride + head * op->head_size + row;
        float *out = op->out + (first * op->num_heads + head) * op->head_size + row;
        if (num_rows == ROWS && count == RUN)
            scan_run(op, steps, run, RUN, x, out, ROWS, packed, state);
        else
            scan_run(op, steps, run, count, x, out, num_rows, packed, state);
    }
}

static void read_slot(const struct ssd *op, size_t slot, size_t head, float *memory)
{
    float *rows = memory + state_floats(op);
    if (slot == 0 || op->head_size % ROWS != 0)
        memset(memory, 0, state_floats(op) * sizeof(float));
    for (size_t row = 0; slot != 0 && row < op->head_size; row += ROWS) {
        size_t num_rows = min_size(ROWS, op->head_size - row), index = ssd_state_index(op, slot, head, row);
        const float *from = (const float *)op->state + index;
        if (op->state_is_bfloat16) {
            widen_state(op->state, true, index, rows, num_rows * op->state_size);
            from = rows;
        }
        transpose(from, op->state_size, memory + row * op->state_size, ROWS, num_rows, op->state_size);
    }
}

static void write_slot(const struct ssd *op, size_t slot, size_t head, float *memory)
{
    float *rows = memory + state_floats(op);
    for (size_t row = 0; slot != 0 && row < op->head_size; row += ROWS) {
        size_t num_rows = min_size(ROWS, op->head_size - row), index = ssd_state_index(op, slot, head, row);
        float *to = op->state_is_bfloat16 ? rows : (float *)op->state + index;
        transpose(memory + row * op->state_size, ROWS, to, op->state_size, op->state_size, num_rows);
        if (op->state_is_bfloat16)
            narrow_state(rows, op->state, true, index, num_rows * op->state_size);
    }
}

static void round_state(const struct ssd *op, float *state)
{
    for (size_t i = 0; i < state_floats(op); i += WIDTH)
        store(state + i, rounded_to_bfloat16(load(state + i)));
}

/* Whether a chunk starts from the state that the one before it leaves in scratch. */
static bool is_carried(struct span before, struct span span)
{
    return before.write_slot != 0 && before.write_slot == span.read_slot;
}

static void scan_head(const struct scan *scan, size_t head, size_t first_chunk, size_t end_chunk, float *memory)
{
    const struct ssd *op = scan->op;
    struct steps steps;
    struct span before = {0};
    for (size_t i = first_chunk; i < end_chunk; i++) {
        struct span span = chunk_span(scan->chunks, i);
        struct shared shared = shared_of(op, memory, i - first_chunk);
        compute_steps(op, span, head, shared.products, &steps);
        if (!is_carried(before, span))
            read_slot(op, span.read_slot, head, memory);
        for (size_t row = 0; row < op->head_size; row += ROWS)
            scan_block(op, span, &steps, head, row, shared.inputs, memory + row * op->state_size);
        if (op->state_is_bfloat16)
            round_state(op, memory);
        struct span after = i + 1 < end_chunk ? chunk_span(scan->chunks, i + 1) : (struct span){0};
        if (!is_carried(span, after) || after.write_slot != span.write_slot)
            write_slot(op, span.write_slot, head, memory);
        write_slot(op, span.checkpoint_slot, head, memory);
        before = span;
    }
}

static void scan_heads(const void *argument, size_t begin, size_t end, size_t thread)
{
    const struct scan *scan = argument;
    const struct ssd *op = scan->op;
    float *memory = scan->scratch + thread * scan->scratch_floats;
    for (size_t first = 0; first < scan->chunks->num_chunks; first += ROUND) {
        size_t end_chunk = min_size(first + ROUND, scan->chunks->num_chunks);
        for (size_t head = begin; head < end; head++) {
            size_t group = ssd_group(op, head);
            for (size_t i = first; i < end_chunk && (head == begin || group != ssd_group(op, head - 1)); i++)
                pack_inputs(op, chunk_span(scan->chunks, i), group, shared_of(op, memory, i - first));
            scan_head(scan, head, first, end_chunk, memory);
        }
    }
}

EXPORT int KERNEL(ssd_scan)(struct pool *pool, const struct ssd_scan_call *call)
{
    const struct ssd *op = &call->ssd;
    const struct chunks *chunks = &call->chunks;
    enum status status = check_chunks(chunks, op->num_tokens, op->num_slots);
    if (status != OK)
        return status;
    size_t floats = state_floats(op) + ROWS * op->state_size + min_size(chunks->num_chunks, ROUND) * shared_floats(op);
    floats = divide_up(floats, SUM_LANES) * SUM_LANES;
    struct scan scan = {op, chunks, floats, pool_scratch(pool, floats * pool_num_threads(pool))};
    if (scan.scratch == NULL)
        return OUT_OF_MEMORY;
    pool_run(pool, op->num_heads, grain_for(op->num_tokens * op->state_size * op->head_size), scan_heads, &scan);
    return OK;
}
