/* The inputs of a bfloat16 product: rows rounded to bfloat16 once a call, in the pool's scratch.
 *
 *     rounded[row][k]        k beyond num_in: 0, up to a whole number of cache lines
 *
 * Rows lie an odd number of cache lines apart, so that the same k of many rows does not fall on the same few
 * places of a cache. Rounding is to the nearest, ties to even; NaN stays NaN, denormals become 0.
 */
#ifndef MAMBAD_ROUNDED_H
#define MAMBAD_ROUNDED_H

#include "linear.h"

#if defined(__AVX512BF16__)

enum { LINE_BFLOAT16 = 64 / sizeof(uint16_t) };

struct rounding {
    const struct linear_call *call;
    uint16_t *rounded;
    size_t stride;
};

INLINE size_t rounded_stride(size_t num_in)
{
    return (divide_up(num_in, LINE_BFLOAT16) | 1) * LINE_BFLOAT16;
}

static void round_rows(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct rounding *rounding = op;
    size_t num_in = rounding->call->linear->num_in, num_k = divide_up(num_in, LINE_BFLOAT16) * LINE_BFLOAT16;
    (void)thread;
    for (size_t row = begin; row < end; row++) {
        const float *from = rounding->call->x + row * rounding->call->x_stride;
        uint16_t *to = rounding->rounded + row * rounding->stride;
        for (size_t k = 0; k < num_k; k += WIDTH) {
            lanes values = k < num_in ? load_first(from + k, num_in - k) : (lanes){0};
            _mm256_storeu_si256((__m256i *)(to + k), (__m256i)_mm512_cvtneps_pbh((__m512)values));
        }
    }
}

/* Returns the rounded rows, rounded_stride(num_in) apart; NULL without memory. */
INLINE const uint16_t *round_inputs(struct pool *pool, const struct linear_call *call)
{
    size_t stride = rounded_stride(call->linear->num_in);
    uint16_t *rounded = (uint16_t *)pool_scratch(pool, divide_up(call->num_rows * stride, 2));
    struct rounding rounding = {call, rounded, stride};
    if (rounded != NULL)
        pool_run(pool, call->num_rows, grain_for(stride / 8), round_rows, &rounding);
    return rounded;
}

#endif
#endif
