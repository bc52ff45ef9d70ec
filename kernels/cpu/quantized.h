/* Quantized weights as quantized_pack.c lays them out and quantized_linear.c reads them.
 *
 * A weight (num_out, num_in) has integers of 8 or 4 bits and a bfloat16 scale for each column (output) and
 * each group of k (input). It is cut into panels of PANEL columns, a panel into one block for each group:
 *
 *     panel   [block of group 0][block of group 1]...            the last group may be shorter
 *     block   [step 0][step 1]...[PANEL scales]
 *     step    PANEL times 4 bytes: column 0, column 1, ...       64 bytes make a vector, or a row of a tile
 *
 *     8 bits  byte j of a column in step s is the integer of k = 4s + j, plus 128
 *     4 bits  byte j of a column in step s is the integer of k = 8s + j, plus 8, and in its upper half that of
 *             k = 8s + 4 + j, plus 8
 *
 * So stored weights are unsigned, as the dot product instructions want them; what the offset adds to a sum
 * depends on the row only and is taken off beforehand. Columns and steps beyond the weight's end have scale 0
 * and meet inputs 0.
 */
#ifndef MAMBAD_QUANTIZED_H
#define MAMBAD_QUANTIZED_H

#include <stdbool.h>

#include "lanes.h"

enum {
    PANEL = 2 * WIDTH,
    STEP_BYTES = 4 * PANEL,
    SCALE_BYTES = 2 * PANEL,
};

struct quantized {
    size_t num_out;
    size_t num_in;
    size_t group_size;
    size_t num_groups;
    size_t panel_bytes;
    size_t num_bytes;
    bool is_int4;
    uint8_t *panels;
    float *bias; /* [num_panels][PANEL] or NULL */
};

/* Steps of a group: all have those of group_size inputs but the last one. */
INLINE size_t steps_of_group(const struct quantized *weight, size_t group)
{
    size_t num_k = min_size(weight->group_size, weight->num_in - group * weight->group_size);
    return divide_up(num_k, weight->is_int4 ? 8 : 4);
}

/* Where a group's block begins in its panel. */
INLINE size_t block_offset(const struct quantized *weight, size_t group)
{
    return group * (weight->group_size / (weight->is_int4 ? 8 : 4) * STEP_BYTES + SCALE_BYTES);
}

#endif
