/* What every op file shares: names of exported functions, status codes, small helpers.
 *
 * Each op file is compiled once for every dispatch level (build.py), with LEVEL set to its name, such as
 * avx512, and exports its op as mambad_<LEVEL>_<op>; pool.c, memory.c and dispatch.c are compiled once for
 * all. library.py chooses a level when it loads the library.
 *
 * Every op is `int KERNEL(op)(struct pool *, const struct <op>_call *)`: one struct holds all its arguments.
 * calls.py mirrors it field by field. Its first field is a size_t, the number of rows or tokens, so that a
 * recorded call can be repeated with another number of them; the strides of a call do not depend on it.
 *
 * All arithmetic follows IEEE 754 as written: the build forbids contraction and reassociation, and a fused
 * multiply-add appears only where fused() stands. So a value does not depend on which loop body, row block
 * or thread computed it, and the equality promise (design.md, section 6) rests on the source alone.
 */
#ifndef MAMBAD_KERNEL_H
#define MAMBAD_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include "pool.h"

#define JOIN_EXPANDED(level, name) mambad_##level##_##name
#define JOIN(level, name) JOIN_EXPANDED(level, name)
#define KERNEL(name) JOIN(LEVEL, name)
#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

/* What an op returns; library.py raises an exception for all but OK. */
enum status { OK = 0, OUT_OF_MEMORY = 1, BAD_CHUNKS = 2, BAD_SLOT = 3, BAD_BLOCK = 4, BAD_TOKEN = 5 };

static inline size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static inline size_t divide_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

/* Fewest units that make a range worth a thread's while, when a unit costs about `cost` simple operations. */
static inline size_t grain_for(size_t cost)
{
    return divide_up(32768, max_size(cost, 1));
}

#endif
