/* Threads and scratch memory of one CpuOps; compiled once, for all dispatch levels.
 *
 * A pool serves one caller at a time. Ops give it ranges of rows, channels, heads or output columns, never
 * a part of a sum, so results do not depend on the number of threads or on who took which range.
 */
#ifndef MAMBAD_POOL_H
#define MAMBAD_POOL_H

#include <stddef.h>

struct pool;

/* Work on units [begin, end) of an op; `thread` is in [0, pool_num_threads) and owns its part of scratch. */
typedef void range_function(const void *op, size_t begin, size_t end, size_t thread);

/* Starts num_threads - 1 threads: the caller of pool_run is the other one. NULL if they can't be had. */
struct pool *mambad_pool_create(int num_threads);

/* Ends the threads and frees the pool. No op may be running. */
void mambad_pool_destroy(struct pool *pool);

size_t pool_num_threads(const struct pool *pool);

/* At least num_floats of memory, aligned to 64 bytes, valid until the next call; NULL if there is none. */
float *pool_scratch(struct pool *pool, size_t num_floats);

/* Splits units [0, count) into ranges of at least `grain` units and returns when all have been done. */
void pool_run(struct pool *pool, size_t count, size_t grain, range_function *function, const void *op);

#endif
