/* Rows of activations as integers: 8 bits with a float32 scale for each group of k, the same for any number
 * of rows and at every dispatch level.
 *
 *     scale = max / 127, integer = x * (127 / max) rounded to nearest even, max = largest |x| of the group
 *
 * A group of numbers that are all below 2^-100 counts as 0. One NaN or infinity makes the group's scale NaN,
 * and with it all results of the row.
 */
#ifndef MAMBAD_QUANTIZE_ROWS_H
#define MAMBAD_QUANTIZE_ROWS_H

#include <math.h>

#include "quantized.h"

/* A group's numbers of all rows lie together, because a panel takes one group after the other. */
struct quantized_rows {
    const struct quantized *weight; /* gives the groups */
    const float *x;
    size_t x_stride;
    size_t num_rows;
    int8_t *integers; /* [num_groups][num_rows][group_size], 0 beyond num_in */
    float *scales;    /* [num_groups][num_rows] */
    int32_t *starts;  /* [num_groups][num_rows]: minus the sum of the integers times the offset of the weights */
};

INLINE int32_t sum_of(int_lanes values)
{
    int32_t sum = 0;
    for (int i = 0; i < WIDTH; i++)
        sum += values[i];
    return sum;
}

/* Largest |x| of `count` numbers, as bits: these have the order of the numbers, and NaN comes last. */
INLINE int32_t largest_bits(const float *x, size_t count)
{
    int_lanes largest = {0};
    for (size_t i = 0; i < count; i += WIDTH) {
        int_lanes bits = (int_lanes)load_first(x + i, count - i) & 0x7fffffff;
        int_lanes is_larger = bits > largest;
        largest = (is_larger & bits) | (~is_larger & largest);
    }
    int32_t result = 0;
    for (int i = 0; i < WIDTH; i++)
        result = largest[i] > result ? largest[i] : result;
    return result;
}

/* Writes count integers of x * factor, no larger than 127, and returns their sum. */
INLINE int32_t round_to_integers(const float *x, float factor, size_t count, int8_t *integers)
{
    typedef int8_t byte_lanes __attribute__((vector_size(WIDTH)));
    const lanes magic = broadcast(12582912.0f); /* 1.5 * 2^23: its neighbours are 1 apart, so adding it rounds */
    int_lanes sum = {0};
    for (size_t i = 0; i < count; i += WIDTH) {
        int_lanes rounded = (int_lanes)(load_first(x + i, count - i) * broadcast(factor) + magic) - (int_lanes)magic;
        byte_lanes bytes = __builtin_convertvector(rounded, byte_lanes);
        memcpy(integers + i, &bytes, min_size(WIDTH, count - i));
        sum += rounded;
    }
    return sum_of(sum);
}

static void quantize_group(const struct quantized_rows *rows, size_t row, size_t group)
{
    enum { INFINITY_BITS = 0x7f800000, TINY_BITS = (127 - 100) << 23 };
    const struct quantized *weight = rows->weight;
    size_t k = group * weight->group_size, count = min_size(weight->group_size, weight->num_in - k);
    size_t index = group * rows->num_rows + row;
    const float *x = rows->x + row * rows->x_stride + k;
    int8_t *integers = rows->integers + index * weight->group_size;
    int32_t bits = largest_bits(x, count), sum = 0;
    float scale = bits < INFINITY_BITS ? 0.0f : NAN;
    if (bits >= TINY_BITS && bits < INFINITY_BITS) {
        float largest;
        memcpy(&largest, &bits, sizeof largest);
        scale = largest / 127.0f;
        sum = round_to_integers(x, 127.0f / largest, count, integers);
    } else {
        count = 0;
    }
    memset(integers + count, 0, weight->group_size - count);
    rows->scales[index] = scale;
    rows->starts[index] = -sum * (weight->is_int4 ? 8 : 128);
}

static void quantize_rows(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct quantized_rows *rows = op;
    (void)thread;
    for (size_t row = begin; row < end; row++)
        for (size_t group = 0; group < rows->weight->num_groups; group++)
            quantize_group(rows, row, group);
}

#endif
