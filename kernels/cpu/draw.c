/* Draws a token from each row of logits: see Ops.draw. A unit of work is a row.
 *
 * A token's weight is exp((logit - largest logit) / temperature). A draw inverts the running sum of the weights
 * of the kept tokens: in the order of ids if there is no top-k and no top-p, else in that of rank.h.
 */
#include <float.h>
#include <math.h>

#include "functions.h"
#include "rank.h"

enum { BLOCK = 256 }; /* weights whose sum and maximum are kept; a multiple of WIDTH */

/* What is wanted for each row. */
struct draw_call {
    size_t num_rows;
    const float *logits; /* (num_rows, num_tokens), contiguous */
    size_t num_tokens;
    const float *temperatures; /* 0: the first of the largest logits, without a draw */
    const int64_t *top_k;      /* 0 or num_tokens and more: no limit */
    const double *top_p;       /* 1 and more: no limit */
    const float *min_p;        /* 0: no limit */
    const double *uniforms;    /* in [0, 1) */
    int64_t *token_ids;        /* out; -1 for a row that is not finite */
};

/* Memory of a thread. */
struct scratch {
    float *weights;         /* num_tokens, in whole blocks */
    double *block_sums;     /* for each block */
    float *block_maxima;
    uint32_t *ids;          /* num_tokens */
    uint32_t *members;      /* num_tokens */
    struct bucket *buckets; /* NUM_BUCKETS */
};

struct draw {
    const struct draw_call *call;
    float *memory;
    size_t thread_floats;
};

static size_t num_blocks(const struct draw_call *call)
{
    return divide_up(call->num_tokens, BLOCK);
}

static size_t scratch_floats(const struct draw_call *call)
{
    size_t double_floats = sizeof(double) / sizeof(float), bucket_floats = sizeof(struct bucket) / sizeof(float);
    size_t total = num_blocks(call) * (3 * BLOCK + double_floats + 1) + NUM_BUCKETS * bucket_floats;
    return divide_up(total, SUM_LANES) * SUM_LANES;
}

static struct scratch thread_scratch(const struct draw *draw, size_t thread)
{
    size_t blocks = num_blocks(draw->call);
    struct scratch scratch = {.weights = draw->memory + thread * draw->thread_floats};
    scratch.buckets = (struct bucket *)(scratch.weights + blocks * BLOCK);
    scratch.block_sums = (double *)(scratch.buckets + NUM_BUCKETS);
    scratch.block_maxima = (float *)(scratch.block_sums + blocks);
    scratch.ids = (uint32_t *)(scratch.block_maxima + blocks);
    scratch.members = scratch.ids + blocks * BLOCK;
    return scratch;
}

/* The largest logit, or NaN if one of them is not finite. */
static float largest(const float *logits, size_t num_tokens)
{
    lanes maximum = broadcast(logits[0]);
    int_lanes is_bad = {0};
    for (size_t i = 0; i < num_tokens; i += WIDTH) {
        size_t count = num_tokens - i;
        lanes x = load_first(logits + i, count);
        is_bad |= ~(x - x == 0.0f);
        if (count < WIDTH)
            for (size_t lane = count; lane < WIDTH; lane++)
                x[lane] = logits[0];
        maximum = at_least(maximum, x);
    }
    float result = maximum[0];
    for (size_t lane = 0; lane < WIDTH; lane++) {
        if (is_bad[lane])
            return NAN;
        result = maximum[lane] > result ? maximum[lane] : result;
    }
    return result;
}

static size_t first_equal(const float *logits, float value, size_t num_tokens)
{
    size_t i = 0;
    while (i + 1 < num_tokens && logits[i] != value)
        i++;
    return i;
}

/* Weights below `lowest` become 0. Tokens beyond the last weigh 0. Returns the sum. */
static double fill_weights(const struct scratch *scratch, const float *logits, size_t num_tokens, float maximum,
                           float temperature, float lowest)
{
    typedef double wide_lanes __attribute__((vector_size(8 * WIDTH)));
    double sum = 0.0;
    for (size_t start = 0; start < num_tokens; start += BLOCK) {
        wide_lanes sums = {0};
        lanes maxima = {0};
        for (size_t i = start; i < start + BLOCK; i += WIDTH) {
            lanes weights = {0};
            if (i < num_tokens) {
                size_t count = num_tokens - i;
                weights = exp_lanes((load_first(logits + i, count) - maximum) / temperature);
                weights = choose(weights >= lowest, weights, broadcast(0.0f));
                for (size_t lane = count; lane < WIDTH; lane++)
                    weights[lane] = 0.0f;
            }
            store(scratch->weights + i, weights);
            sums += __builtin_convertvector(weights, wide_lanes);
            maxima = at_least(maxima, weights);
        }
        double block_sum = 0.0;
        float block_maximum = 0.0f;
        for (size_t lane = 0; lane < WIDTH; lane++) {
            block_sum += sums[lane];
            block_maximum = maxima[lane] > block_maximum ? maxima[lane] : block_maximum;
        }
        scratch->block_sums[start / BLOCK] = block_sum;
        scratch->block_maxima[start / BLOCK] = block_maximum;
        sum += block_sum;
    }
    return sum;
}

/* The first token whose running sum, in the order of ids, is above the target. */
static size_t draw_by_id(const struct scratch *scratch, size_t num_blocks, double target)
{
    double passed = 0.0;
    size_t block = 0, last = 0;
    while (block + 1 < num_blocks && !(passed + scratch->block_sums[block] > target))
        passed += scratch->block_sums[block++];
    for (size_t i = block * BLOCK; i < (block + 1) * BLOCK; i++) {
        if (scratch->weights[i] == 0.0f)
            continue;
        last = i;
        passed += (double)scratch->weights[i];
        if (passed > target)
            break;
    }
    return last;
}

static bool has_top_k(const struct draw_call *call, size_t row)
{
    return call->top_k[row] > 0 && (size_t)call->top_k[row] < call->num_tokens;
}

/* How far down the ranks the filters let a row go. `total` is the sum of all weights. */
static struct place find_last(const struct ranking *ranking, const struct draw_call *call, size_t row, double total)
{
    struct place last = {0, SIZE_MAX, total};
    if (has_top_k(call, row))
        last = find_place(ranking, &(struct goal){(size_t)call->top_k[row], 0.0, false});
    if (call->top_p[row] < 1.0) {
        struct place place = find_place(ranking, &(struct goal){1, call->top_p[row] * last.mass, false});
        last = place.count < last.count ? place : last;
    }
    size_t num_likely = 0;
    for (size_t i = 0; i < ranking->num_ids; i++)
        num_likely += ranking->weights[ranking->ids[i]] >= call->min_p[row];
    if (num_likely < last.count)
        last = find_place(ranking, &(struct goal){max_size(num_likely, 1), 0.0, false});
    return last;
}

/* No token whose weight is below this is kept. */
static float lower_bound(const struct scratch *scratch, const struct draw_call *call, size_t row, double total)
{
    size_t blocks = num_blocks(call);
    if (!has_top_k(call, row)) /* tokens below have less than 1 - top_p of the mass; 1e-4 is to spare */
        return (float)((1.0 - call->top_p[row] - 1e-4) * total / (double)call->num_tokens);
    if ((size_t)call->top_k[row] > blocks)
        return 0.0f;
    /* The k-th largest of the blocks' maxima: k tokens weigh as much. */
    for (size_t block = 0; block < blocks; block++)
        scratch->ids[block] = (uint32_t)block;
    struct ranking maxima = {scratch->block_maxima, scratch->ids, blocks, scratch->members, scratch->buckets};
    struct place place = find_place(&maxima, &(struct goal){(size_t)call->top_k[row], 0.0, false});
    return scratch->block_maxima[place.id];
}

/* Stores the ids, from `first` on, of the lanes that are at least `lowest`, and returns their number. May write
 * WIDTH ids. */
INLINE size_t append_ids(uint32_t *ids, uint32_t first, lanes weights, float lowest)
{
#if WIDTH == 16
    const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __mmask16 mask = _mm512_cmp_ps_mask((__m512)weights, _mm512_set1_ps(lowest), _CMP_GE_OQ);
    __m512i all = _mm512_add_epi32(places, _mm512_set1_epi32((int)first));
    _mm512_storeu_si512(ids, _mm512_maskz_compress_epi32(mask, all));
    return (size_t)__builtin_popcount(mask);
#else
    size_t num_ids = 0;
    for (uint32_t lane = 0; lane < WIDTH; lane++) {
        ids[num_ids] = first + lane;
        num_ids += weights[lane] >= lowest;
    }
    return num_ids;
#endif
}

static size_t draw_by_rank(const struct scratch *scratch, const struct draw_call *call, size_t row, double total)
{
    /* At least the smallest number, so that tokens without weight are never kept. */
    float bound = lower_bound(scratch, call, row, total), lowest = bound > FLT_TRUE_MIN ? bound : FLT_TRUE_MIN;
    size_t num_ids = 0;
    for (size_t block = 0; block < num_blocks(call); block++) {
        if (scratch->block_maxima[block] < lowest)
            continue;
        for (size_t i = block * BLOCK; i < (block + 1) * BLOCK; i += WIDTH)
            num_ids += append_ids(scratch->ids + num_ids, (uint32_t)i, load(scratch->weights + i), lowest);
    }
    struct ranking ranking = {scratch->weights, scratch->ids, num_ids, scratch->members, scratch->buckets};
    struct place last = find_last(&ranking, call, row, total);
    struct place drawn = find_place(&ranking, &(struct goal){1, call->uniforms[row] * last.mass, true});
    return drawn.count > last.count ? last.id : drawn.id;
}

static int64_t draw_row(const struct draw_call *call, size_t row, const struct scratch *scratch)
{
    const float *logits = call->logits + row * call->num_tokens;
    float maximum = largest(logits, call->num_tokens), temperature = call->temperatures[row];
    if (maximum != maximum)
        return -1;
    if (temperature == 0.0f)
        return (int64_t)first_equal(logits, maximum, call->num_tokens);
    bool is_ranked = call->top_p[row] < 1.0 || has_top_k(call, row);
    float lowest = is_ranked ? 0.0f : call->min_p[row];
    double total = fill_weights(scratch, logits, call->num_tokens, maximum, temperature, lowest);
    if (is_ranked)
        return (int64_t)draw_by_rank(scratch, call, row, total);
    return (int64_t)draw_by_id(scratch, num_blocks(call), call->uniforms[row] * total);
}

static void draw_rows(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct draw *draw = op;
    struct scratch scratch = thread_scratch(draw, thread);
    for (size_t row = begin; row < end; row++)
        draw->call->token_ids[row] = draw_row(draw->call, row, &scratch);
}

EXPORT int KERNEL(draw)(struct pool *pool, const struct draw_call *call)
{
    struct draw draw = {.call = call, .thread_floats = scratch_floats(call)};
    draw.memory = pool_scratch(pool, draw.thread_floats * pool_num_threads(pool));
    if (draw.memory == NULL)
        return OUT_OF_MEMORY;
    pool_run(pool, call->num_rows, grain_for(call->num_tokens), draw_rows, &draw);
    return OK;
}
