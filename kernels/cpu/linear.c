/* Linear layers: packing, and which of the products of linear.h an op call takes. */
#include <stdlib.h>

#include "linear.h"
#include "memory.h"

struct packing {
    const struct linear *linear;
    const void *weight;
};

static void pack_panels(const void *op, size_t begin, size_t end, size_t thread)
{
    const struct packing *packing = op;
    const struct linear *linear = packing->linear;
    (void)thread;
    for (size_t column = begin * PANEL; column < end * PANEL; column++) {
        size_t to = first_weight(linear, column), from = column * linear->num_in;
        size_t num_real = column < linear->num_out ? linear->num_in : 0;
        for (size_t k = 0; k < linear->num_k; k++)
            if (linear->is_bfloat16)
                ((uint16_t *)linear->panels)[to + weight_offset(linear, k)] =
                    k < num_real ? ((const uint16_t *)packing->weight)[from + k] : 0;
            else
                ((float *)linear->panels)[to + weight_offset(linear, k)] =
                    k < num_real ? ((const float *)packing->weight)[from + k] : 0;
    }
}

EXPORT void KERNEL(free_linear)(struct linear *linear)
{
    free(linear->panels);
    free(linear->bias);
    free(linear);
}

EXPORT size_t KERNEL(linear_bytes)(const struct linear *linear)
{
    return linear->num_bytes;
}

EXPORT struct linear *KERNEL(pack_linear)(struct pool *pool, const void *weight, const float *bias, size_t num_out,
                                          size_t num_in, int is_bfloat16)
{
    struct linear *linear = calloc(1, sizeof *linear);
    if (linear == NULL)
        return NULL;
    bool has_pairs = is_bfloat16 && BFLOAT16_PAIRS;
    linear->num_out = num_out;
    linear->num_in = num_in;
    linear->num_k = has_pairs ? divide_up(num_in, K_UNIT) * K_UNIT : num_in;
    linear->group = has_pairs ? 2 : 1;
    linear->is_bfloat16 = is_bfloat16 != 0;
    size_t num_columns = divide_up(num_out, PANEL) * PANEL;
    size_t panel_bytes = num_columns * linear->num_k * (is_bfloat16 ? sizeof(uint16_t) : sizeof(float));
    size_t bias_bytes = bias == NULL ? 0 : num_columns * sizeof(float);
    linear->panels = allocate_weights(panel_bytes);
    linear->bias = bias == NULL ? NULL : allocate_weights(bias_bytes);
    linear->num_bytes = panel_bytes + bias_bytes;
    if (linear->panels == NULL || (bias != NULL && linear->bias == NULL)) {
        KERNEL(free_linear)(linear);
        return NULL;
    }
    if (bias != NULL) {
        memset(linear->bias, 0, bias_bytes);
        memcpy(linear->bias, bias, num_out * sizeof(float));
    }
    struct packing packing = {linear, weight};
    pool_run(pool, num_columns / PANEL, grain_for(linear->num_k * PANEL), pack_panels, &packing);
    return linear;
}

EXPORT int KERNEL(linear)(struct pool *pool, const struct linear_call *call)
{
    if (call->num_rows == 0)
        return OK;
#if defined(__AVX512BF16__)
    if (call->linear->is_bfloat16)
        return KERNEL(multiply_bfloat16)(pool, call);
#endif
    return KERNEL(multiply_float)(pool, call);
}
