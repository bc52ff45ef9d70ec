/* Lays out quantized weights: see quantized.h. The integers themselves come from kernels/quantization.py. */
#include <stdlib.h>

#include "memory.h"
#include "quantized.h"

struct packing {
    const struct quantized *weight;
    const int8_t *integers; /* [num_out][num_groups * group_size] */
    const uint16_t *scales; /* bfloat16 [num_out][num_groups] */
};

/* The integer of an input of a column, without sign; 0 outside the weight. */
static unsigned unsigned_at(const struct packing *packing, size_t column, size_t k)
{
    const struct quantized *weight = packing->weight;
    unsigned offset = weight->is_int4 ? 8 : 128;
    if (column >= weight->num_out || k >= weight->num_in)
        return offset;
    int value = packing->integers[column * weight->num_groups * weight->group_size + k];
    return (unsigned)(value + (int)offset);
}

static void pack_block(const struct packing *packing, size_t panel, size_t group)
{
    const struct quantized *weight = packing->weight;
    uint8_t *to = weight->panels + panel * weight->panel_bytes + block_offset(weight, group);
    size_t first_k = group * weight->group_size, num_steps = steps_of_group(weight, group);
    for (size_t step = 0; step < num_steps; step++)
        for (size_t i = 0; i < STEP_BYTES; i++) {
            size_t column = panel * PANEL + i / 4, k = first_k + step * (weight->is_int4 ? 8 : 4) + i % 4;
            unsigned value = unsigned_at(packing, column, k);
            if (weight->is_int4)
                value |= unsigned_at(packing, column, k + 4) << 4;
            to[step * STEP_BYTES + i] = (uint8_t)value;
        }
    uint16_t *scales = (uint16_t *)(to + num_steps * STEP_BYTES);
    for (size_t i = 0; i < PANEL; i++) {
        size_t column = panel * PANEL + i;
        scales[i] = column < weight->num_out ? packing->scales[column * weight->num_groups + group] : 0;
    }
}

static void pack_panels(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct packing *packing = op;
    (void)thread;
    for (size_t panel = begin; panel < end; panel++)
        for (size_t group = 0; group < packing->weight->num_groups; group++)
            pack_block(packing, panel, group);
}

EXPORT void KERNEL(free_quantized)(struct quantized *weight)
{
    free(weight->panels);
    free(weight->bias);
    free(weight);
}

EXPORT size_t KERNEL(quantized_bytes)(const struct quantized *weight)
{
    return weight->num_bytes;
}

/* What a weight and its bias are, before they are packed. */
struct quantized_source {
    const int8_t *integers; /* [num_out][num_groups * group_size] */
    const uint16_t *scales; /* bfloat16 [num_out][num_groups] */
    const float *bias;      /* [num_out] or NULL */
    size_t num_out;
    size_t num_in;
    size_t group_size; /* a multiple of 8 */
    size_t is_int4;
};

/* NULL without memory. */
EXPORT struct quantized *KERNEL(pack_quantized)(struct pool *pool, const struct quantized_source *source)
{
    struct quantized *weight = calloc(1, sizeof *weight);
    if (weight == NULL)
        return NULL;
    size_t num_panels = divide_up(source->num_out, PANEL);
    weight->num_out = source->num_out;
    weight->num_in = source->num_in;
    weight->group_size = source->group_size;
    weight->num_groups = divide_up(source->num_in, source->group_size);
    weight->is_int4 = source->is_int4 != 0;
    size_t last = weight->num_groups - 1;
    weight->panel_bytes = block_offset(weight, last) + steps_of_group(weight, last) * STEP_BYTES + SCALE_BYTES;
    size_t bias_bytes = source->bias == NULL ? 0 : num_panels * PANEL * sizeof(float);
    weight->num_bytes = num_panels * weight->panel_bytes + bias_bytes;
    weight->panels = allocate_weights(num_panels * weight->panel_bytes);
    weight->bias = source->bias == NULL ? NULL : allocate_weights(bias_bytes);
    if (weight->panels == NULL || (source->bias != NULL && weight->bias == NULL)) {
        KERNEL(free_quantized)(weight);
        return NULL;
    }
    if (source->bias != NULL) {
        memset(weight->bias, 0, bias_bytes);
        memcpy(weight->bias, source->bias, source->num_out * sizeof(float));
    }
    struct packing packing = {weight, source->integers, source->scales};
    pool_run(pool, num_panels, grain_for(weight->num_in * PANEL), pack_panels, &packing);
    return weight;
}
