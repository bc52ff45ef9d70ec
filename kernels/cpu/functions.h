/* exp, softplus and silu on lanes, and sums over lanes.
 *
 * The functions are accurate to about one unit in the last place (softplus and silu: two), pass NaN on and
 * are right at infinities; exp goes down gradually to 0. The sums have one order at every dispatch level.
 */
#ifndef MAMBAD_FUNCTIONS_H
#define MAMBAD_FUNCTIONS_H

#include "lanes.h"

/* e^x = 2^n e^r with n an integer and |r| <= ln(2) / 2; e^r by a polynomial (Cephes expf). */
INLINE lanes exp_lanes(lanes x)
{
    const float round_to_integer = 12582912.0f; /* 1.5 * 2^23: adding it leaves no bits for a fraction */
    x = at_most(broadcast(89.0f), at_least(broadcast(-105.0f), x)); /* beyond: inf and 0 by 2^n */
    lanes shifted = fused(x, broadcast(1.44269504f), broadcast(round_to_integer));
    lanes n = shifted - round_to_integer;
    lanes r = fused(n, broadcast(-0.693359375f), x); /* ln(2) in two parts, the first one exact times n */
    r = fused(n, broadcast(2.12194440e-4f), r);
    lanes p = fused(broadcast(1.9875691500e-4f), r, broadcast(1.3981999507e-3f));
    p = fused(p, r, broadcast(8.3334519073e-3f));
    p = fused(p, r, broadcast(4.1665795894e-2f));
    p = fused(p, r, broadcast(1.6666665459e-1f));
    p = fused(p, r, broadcast(5.0000001201e-1f));
    p = fused(p, r * r, r); /* e^r - 1 */
    return scaled(p + 1.0f, n);
}

/* 2^x for x <= 0: the same by another polynomial, whose constant term is exactly 1. */
INLINE lanes exp2_of_negative(lanes x)
{
    const float round_to_integer = 12582912.0f;
    x = at_least(broadcast(-152.0f), x);
    lanes n = (x + round_to_integer) - round_to_integer;
    lanes r = x - n;
    lanes p = fused(broadcast(1.5353361960e-4f), r, broadcast(1.3398873853e-3f));
    p = fused(p, r, broadcast(9.6184369177e-3f));
    p = fused(p, r, broadcast(5.5503323674e-2f));
    p = fused(p, r, broadcast(2.4022647738e-1f));
    p = fused(p, r, broadcast(6.9314718246e-1f));
    return scaled(fused(p, r, broadcast(1.0f)), n);
}

/* log(1 + y) for y >= 0 (or NaN): log of the rounded sum by Cephes logf, plus what rounding lost. */
INLINE lanes log1p_lanes(lanes y)
{
    lanes sum = y + 1.0f;
    lanes lost = y - (sum - 1.0f);
    int_lanes exponent = ((int_lanes)sum - 0x3f3504f3) >> 23; /* mantissa from sqrt(1/2) to sqrt(2) */
    lanes f = (lanes)((int_lanes)sum - (exponent << 23)) - 1.0f;
    lanes square = f * f;
    lanes p = fused(broadcast(7.0376836292e-2f), f, broadcast(-1.1514610310e-1f));
    p = fused(p, f, broadcast(1.1676998740e-1f));
    p = fused(p, f, broadcast(-1.2420140846e-1f));
    p = fused(p, f, broadcast(1.4249322787e-1f));
    p = fused(p, f, broadcast(-1.6668057665e-1f));
    p = fused(p, f, broadcast(2.0000714765e-1f));
    p = fused(p, f, broadcast(-2.4999993993e-1f));
    p = fused(p, f, broadcast(3.3333331174e-1f));
    lanes n = __builtin_convertvector(exponent, lanes);
    lanes low = fused(n, broadcast(-2.12194440e-4f), p * f * square) + lost / sum;
    return fused(n, broadcast(0.693359375f), fused(square, broadcast(-0.5f), low) + f);
}

INLINE lanes softplus_lanes(lanes x)
{
    return choose(x > 20.0f, x, log1p_lanes(exp_lanes(x)));
}

INLINE lanes silu_lanes(lanes x)
{
    return x / (exp_lanes(-x) + 1.0f);
}

INLINE float exp_one(float x)
{
    return exp_lanes(broadcast(x))[0];
}

/* Sums are kept in SUM_LANES interleaved parts whatever WIDTH is, and added up pairwise at the end. */
#define SUM_LANES 16

struct sum {
    lanes parts[SUM_LANES / WIDTH];
};

/* Adds a[i] * b[i] for i < count to the part i % SUM_LANES. */
INLINE struct sum add_products(struct sum sum, const float *a, const float *b, size_t count)
{
    size_t i = 0;
    for (; i + SUM_LANES <= count; i += SUM_LANES)
        for (size_t part = 0; part < SUM_LANES / WIDTH; part++)
            sum.parts[part] = fused(load(a + i + part * WIDTH), load(b + i + part * WIDTH), sum.parts[part]);
    for (size_t part = 0; i < count; part++, i += WIDTH)
        sum.parts[part] = fused(load_first(a + i, count - i), load_first(b + i, count - i), sum.parts[part]);
    return sum;
}

INLINE float total(struct sum sum)
{
    float parts[SUM_LANES];
    memcpy(parts, &sum, sizeof parts);
    for (size_t half = SUM_LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            parts[i] += parts[i + half];
    return parts[0];
}

INLINE float dot(const float *a, const float *b, size_t count)
{
    return total(add_products((struct sum){0}, a, b, count));
}

#endif
