/* Memory for packed weights. */
#ifndef MAMBAD_MEMORY_H
#define MAMBAD_MEMORY_H

#include <stddef.h>

/* Uninitialised memory in huge pages where it is large and the system has them (reading weights at memory
 * speed needs them: perf.md, section 1), else aligned to a cache line. For free(); NULL if there is none. */
void *allocate_weights(size_t num_bytes);

#endif
