/* One row of a root-mean-square norm. The sum of squares is taken in the fixed order of add_products. */
#ifndef MAMBAD_NORM_H
#define MAMBAD_NORM_H

#include <math.h>

#include "functions.h"

static inline void norm_row(const float *x, const float *weight, float epsilon, float *out, size_t width)
{
    lanes scale = broadcast(1.0f / sqrtf(dot(x, x, width) / (float)width + epsilon));
    for (size_t i = 0; i < width; i += WIDTH) {
        size_t count = width - i;
        store_first(out + i, load_first(x + i, count) * scale * load_first(weight + i, count), count);
    }
}

#endif
