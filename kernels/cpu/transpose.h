/* Transposition of small float matrices, in squares of four by four where they fit. */
#ifndef MAMBAD_TRANSPOSE_H
#define MAMBAD_TRANSPOSE_H

#include "kernel.h"

typedef float four_floats __attribute__((vector_size(16)));
typedef float four_floats_in_memory __attribute__((vector_size(16), aligned(4), may_alias));

INLINE void transpose_square(const float *from, size_t from_stride, float *to, size_t to_stride)
{
    four_floats a = *(const four_floats_in_memory *)from;
    four_floats b = *(const four_floats_in_memory *)(from + from_stride);
    four_floats c = *(const four_floats_in_memory *)(from + 2 * from_stride);
    four_floats d = *(const four_floats_in_memory *)(from + 3 * from_stride);
    four_floats ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    four_floats ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    four_floats cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    four_floats cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(four_floats_in_memory *)to = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    *(four_floats_in_memory *)(to + to_stride) = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    *(four_floats_in_memory *)(to + 2 * to_stride) = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    *(four_floats_in_memory *)(to + 3 * to_stride) = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

/* to[column][row] = from[row][column] for num_rows rows of num_columns; strides are between rows. */
static inline void transpose(const float *from, size_t from_stride, float *to, size_t to_stride, size_t num_rows,
                             size_t num_columns)
{
    size_t square_rows = num_rows / 4 * 4, square_columns = num_columns / 4 * 4;
    for (size_t row = 0; row < square_rows; row += 4)
        for (size_t column = 0; column < square_columns; column += 4)
            transpose_square(from + row * from_stride + column, from_stride, to + column * to_stride + row,
                             to_stride);
    for (size_t row = 0; row < num_rows; row++)
        for (size_t column = row < square_rows ? square_columns : 0; column < num_columns; column++)
            to[column * to_stride + row] = from[row * from_stride + column];
}

#endif
