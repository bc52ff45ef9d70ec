/* One group of k in a quantized product: its rows, and how its products enter the sums. */
#ifndef MAMBAD_QUANTIZED_GROUP_H
#define MAMBAD_QUANTIZED_GROUP_H

#include "quantized.h"

/* Rows in one group of k. */
struct row_group {
    const int8_t *integers;
    size_t group_size; /* from one row's integers to the next one's */
    const float *scales;
    const int32_t *starts;
};

INLINE struct row_group from_row(struct row_group x, size_t row)
{
    x.integers += row * x.group_size;
    x.scales += row;
    x.starts += row;
    return x;
}

INLINE lanes load_scales(const uint8_t *from)
{
    return load_bfloat16((const uint16_t *)from);
}

/* Adds a group's products of one row and WIDTH columns to their sums. */
INLINE void add_scaled(float *sums, int_lanes products, float row_scale, lanes column_scales)
{
    lanes scales = broadcast(row_scale) * column_scales;
    store(sums, fused(__builtin_convertvector(products, lanes), scales, load(sums)));
}

#endif
