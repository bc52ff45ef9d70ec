/* Recurrent states in memory, float32 or bfloat16, whose numbers are floats in every computation.
 *
 * A number is rounded to the nearest bfloat16 (ties to even) where it is stored, at the end of a chunk or of a
 * decode row, and nowhere else: what is computed next starts from what was stored.
 */
#ifndef MAMBAD_STATE_H
#define MAMBAD_STATE_H

#include <stdbool.h>

#include "lanes.h"

/* The nearest bfloat16 numbers. NaN stays NaN; the instruction takes numbers below the least normal one for 0. */
INLINE bfloat16_lanes_in_memory to_bfloat16(lanes x)
{
#if defined(__AVX512BF16__)
    return (bfloat16_lanes_in_memory)_mm512_cvtneps_pbh((__m512)x);
#else
    uint_lanes bits = (uint_lanes)x;
    int_lanes rounded = (int_lanes)(bits + 0x7fff + ((bits >> 16) & 1));
    int_lanes quiet = (int_lanes)(bits | 0x00400000);
    uint_lanes chosen = (uint_lanes)choose(x == x, (lanes)rounded, (lanes)quiet);
    return __builtin_convertvector(chosen >> 16, bfloat16_lanes_in_memory);
#endif
}

INLINE lanes rounded_to_bfloat16(lanes x)
{
    bfloat16_lanes_in_memory halves = to_bfloat16(x);
    return load_bfloat16((const uint16_t *)&halves);
}

/* The first `count` lanes, and zeros after them. */
INLINE lanes first_lanes(lanes x, size_t count)
{
    return count >= WIDTH ? x : load_first((const float *)&x, count);
}

/* `count` (at most WIDTH) numbers of a state from `index` on; the lanes after them are 0. */
INLINE lanes load_state(const void *state, bool is_bfloat16, size_t index, size_t count)
{
    if (!is_bfloat16)
        return load_first((const float *)state + index, count);
    const uint16_t *from = (const uint16_t *)state + index;
    if (count >= WIDTH)
        return load_bfloat16(from);
    uint16_t part[WIDTH] = {0};
    memcpy(part, from, count * sizeof *from);
    return load_bfloat16(part);
}

INLINE void store_state(void *state, bool is_bfloat16, size_t index, lanes values, size_t count)
{
    if (!is_bfloat16) {
        store_first((float *)state + index, values, count);
        return;
    }
    bfloat16_lanes_in_memory halves = to_bfloat16(values);
    uint16_t *to = (uint16_t *)state + index;
    if (count >= WIDTH)
        *(bfloat16_lanes_in_memory *)to = halves;
    else
        memcpy(to, &halves, count * sizeof *to);
}

/* to[0], to[1], ... become `count` numbers of a state from `index` on. */
static inline void widen_state(const void *state, bool is_bfloat16, size_t index, float *to, size_t count)
{
    for (size_t i = 0; i < count; i += WIDTH)
        store_first(to + i, load_state(state, is_bfloat16, index + i, count - i), count - i);
}

static inline void narrow_state(const float *from, void *state, bool is_bfloat16, size_t index, size_t count)
{
    for (size_t i = 0; i < count; i += WIDTH)
        store_state(state, is_bfloat16, index + i, load_first(from + i, count - i), count - i);
}

#endif
