/* Whether linear layers come out right here: a small product at this level against the same in plain C.
 *
 * dispatch.c asks before it takes a level whose instructions a machine may promise and not have in order.
 */
#include <math.h>

#include "linear.h"

enum { NUM_ROWS = 5, NUM_IN = 70, NUM_OUT = 33 };

struct pool *mambad_pool_create(int num_threads);
void mambad_pool_destroy(struct pool *pool);

/* Small multiples of 1/16, which bfloat16 holds exactly. */
static float value_at(size_t index)
{
    return (float)((int)(index * 7919 % 251) - 125) / 16;
}

static uint16_t upper_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* out = x W^T for x[row][k] = value_at(row + k) and W[column][k] = value_at(column * NUM_IN + k). */
static bool is_right(const float *out)
{
    for (size_t row = 0; row < NUM_ROWS; row++)
        for (size_t column = 0; column < NUM_OUT; column++) {
            double sum = 0, magnitude = 0;
            for (size_t k = 0; k < NUM_IN; k++) {
                double product = (double)value_at(row + k) * value_at(column * NUM_IN + k);
                sum += product;
                magnitude += fabs(product);
            }
            if (!(fabs(out[row * NUM_OUT + column] - sum) <= 1e-5 * magnitude))
                return false;
        }
    return true;
}

int KERNEL(linear_is_right)(void)
{
    float x[NUM_ROWS * NUM_IN], out[NUM_ROWS * NUM_OUT];
    uint16_t weight[NUM_OUT * NUM_IN];
    for (size_t i = 0; i < NUM_ROWS * NUM_IN; i++)
        x[i] = value_at(i / NUM_IN + i % NUM_IN);
    for (size_t i = 0; i < NUM_OUT * NUM_IN; i++)
        weight[i] = upper_half(value_at(i));
    struct pool *pool = mambad_pool_create(1);
    struct linear *linear = pool == NULL ? NULL : KERNEL(pack_linear)(pool, weight, NULL, NUM_OUT, NUM_IN, true);
    struct linear_call call = {NUM_ROWS, linear, x, NUM_IN, out};
    bool is_computed = linear != NULL && KERNEL(linear)(pool, &call) == OK;
    if (linear != NULL)
        KERNEL(free_linear)(linear);
    if (pool != NULL)
        mambad_pool_destroy(pool);
    return is_computed && is_right(out);
}
