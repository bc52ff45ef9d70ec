/* The vector type of a dispatch level, and the few operations on it that C's operators do not cover.
 *
 * `lanes` holds WIDTH floats and takes + - * / like a float. It is a vector extension of GCC and Clang;
 * the operations that have no portable or no fast spelling with the same semantics are intrinsics here and
 * nowhere else. NaN goes through all of them.
 */
#ifndef MAMBAD_LANES_H
#define MAMBAD_LANES_H

#include <string.h>

#include "kernel.h"

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define WIDTH 16
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define WIDTH 8
#elif defined(__aarch64__)
#include <arm_neon.h>
#define WIDTH 4
#else
#define WIDTH 4
#endif

typedef float lanes __attribute__((vector_size(4 * WIDTH)));
typedef int32_t int_lanes __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t uint_lanes __attribute__((vector_size(4 * WIDTH)));
typedef float lanes_in_memory __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef uint16_t bfloat16_lanes_in_memory __attribute__((vector_size(2 * WIDTH), aligned(2), may_alias));

INLINE lanes broadcast(float value)
{
    return value - (lanes){0}; /* x - 0 is x, for -0 too */
}

INLINE lanes load(const float *from)
{
    return *(const lanes_in_memory *)from;
}

INLINE void store(float *to, lanes values)
{
    *(lanes_in_memory *)to = values;
}

/* Like load, but reads no further than `count` floats; the lanes after them are 0. */
INLINE lanes load_first(const float *from, size_t count)
{
    if (count >= WIDTH)
        return load(from);
    lanes values = {0};
    memcpy(&values, from, count * sizeof(float));
    return values;
}

/* Like store, but writes no more than `count` floats. */
INLINE void store_first(float *to, lanes values, size_t count)
{
    if (count >= WIDTH)
        store(to, values);
    else
        memcpy(to, &values, count * sizeof(float));
}

/* WIDTH bfloat16 numbers, widened: the upper half of a float32 is a bfloat16. */
INLINE lanes load_bfloat16(const uint16_t *from)
{
    bfloat16_lanes_in_memory halves = *(const bfloat16_lanes_in_memory *)from;
    return (lanes)(__builtin_convertvector(halves, uint_lanes) << 16);
}

/* a * b + c, rounded once where the level has an instruction for it, else twice. */
INLINE lanes fused(lanes a, lanes b, lanes c)
{
#if WIDTH == 16
    return (lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif WIDTH == 8
    return (lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (lanes)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* Where the mask is all ones: a; where it is 0: b. */
INLINE lanes choose(int_lanes mask, lanes a, lanes b)
{
    return (lanes)((mask & (int_lanes)a) | (~mask & (int_lanes)b));
}

/* x, but no less than floor. NaN stays: x86's instruction returns its second operand then. */
INLINE lanes at_least(lanes floor, lanes x)
{
#if WIDTH == 16
    return (lanes)_mm512_max_ps((__m512)floor, (__m512)x);
#elif WIDTH == 8
    return (lanes)_mm256_max_ps((__m256)floor, (__m256)x);
#else
    return choose(x < floor, floor, x);
#endif
}

/* x, but no more than ceiling. NaN stays. */
INLINE lanes at_most(lanes ceiling, lanes x)
{
#if WIDTH == 16
    return (lanes)_mm512_min_ps((__m512)ceiling, (__m512)x);
#elif WIDTH == 8
    return (lanes)_mm256_min_ps((__m256)ceiling, (__m256)x);
#else
    return choose(x > ceiling, ceiling, x);
#endif
}

/* x * 2^n for integers n from -152 to 128, with a gradual way down to 0. NaN stays. */
INLINE lanes scaled(lanes x, lanes n)
{
#if WIDTH == 16
    return (lanes)_mm512_scalef_ps((__m512)x, (__m512)n);
#else
    /* In two factors, since n may be 128 or below -126. Where n is NaN its bits are noise, but x is NaN. */
    int_lanes exponent = __builtin_convertvector(n, int_lanes);
    int_lanes half = exponent >> 1;
    lanes scale = (lanes)((half << 23) + 0x3f800000);
    lanes other_scale = (lanes)(((exponent - half) << 23) + 0x3f800000);
    return x * scale * other_scale;
#endif
}

#endif
