/* Sums and maxima across the lanes of vectors, in the order of total() in functions.h.
 *
 * FOLD(take, a, b, group) sees a and b as rows of 2 * group lanes one after the other and takes the first half of
 * every row together with its second half. Folding by halves until a row is one lane leaves one result a row:
 *
 *      a = x0 x1 x2 x3, b = y0 y1 y2 y3   FOLD(plus, a, b, 2):  x0+x2  x1+x3  y0+y2  y1+y3
 */
#ifndef MAMBAD_FOLD_H
#define MAMBAD_FOLD_H

#include "functions.h"

#define FIRST(lane, group) ((lane) / (group) * 2 * (group) + (lane) % (group))
#define FOUR(lane, group, half)                                                                                   \
    FIRST(lane, group) + (half), FIRST(lane + 1, group) + (half), FIRST(lane + 2, group) + (half),                \
        FIRST(lane + 3, group) + (half)
#if WIDTH == 16
#define INDICES(group, half) FOUR(0, group, half), FOUR(4, group, half), FOUR(8, group, half), FOUR(12, group, half)
#elif WIDTH == 8
#define INDICES(group, half) FOUR(0, group, half), FOUR(4, group, half)
#else
#define INDICES(group, half) FOUR(0, group, half)
#endif
#define FOLD(take, a, b, group)                                                                                   \
    take(__builtin_shufflevector(a, b, INDICES(group, 0)), __builtin_shufflevector(a, b, INDICES(group, group)))

INLINE lanes plus(lanes a, lanes b)
{
    return a + b;
}

INLINE float largest_of(lanes x)
{
#if WIDTH >= 16
    x = FOLD(at_least, x, x, 8);
#endif
#if WIDTH >= 8
    x = FOLD(at_least, x, x, 4);
#endif
    x = FOLD(at_least, x, x, 2);
    return FOLD(at_least, x, x, 1)[0];
}

/* Lane i is total(sums[i]); sums are overwritten. */
INLINE lanes totals(struct sum *sums)
{
    lanes rows[WIDTH];
    for (size_t row = 0; row < WIDTH; row++) {
        for (size_t half = SUM_LANES / WIDTH / 2; half > 0; half /= 2)
            for (size_t part = 0; part < half; part++)
                sums[row].parts[part] += sums[row].parts[part + half];
        rows[row] = sums[row].parts[0];
    }
    size_t num_rows = WIDTH;
#if WIDTH >= 16
    num_rows /= 2;
#pragma GCC unroll 8
    for (size_t row = 0; row < num_rows; row++)
        rows[row] = FOLD(plus, rows[2 * row], rows[2 * row + 1], 8);
#endif
#if WIDTH >= 8
    num_rows /= 2;
#pragma GCC unroll 4
    for (size_t row = 0; row < num_rows; row++)
        rows[row] = FOLD(plus, rows[2 * row], rows[2 * row + 1], 4);
#endif
    num_rows /= 2;
#pragma GCC unroll 2
    for (size_t row = 0; row < num_rows; row++)
        rows[row] = FOLD(plus, rows[2 * row], rows[2 * row + 1], 2);
    return FOLD(plus, rows[0], rows[1], 1);
}

#endif
