/* Memory for packed weights; compiled once, for all dispatch levels. See memory.h. */
#include "memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { CACHE_LINE = 64, HUGE_PAGE = 2 * 1024 * 1024 };

void *allocate_weights(size_t num_bytes)
{
    size_t alignment = num_bytes >= HUGE_PAGE ? HUGE_PAGE : CACHE_LINE;
    if (num_bytes > SIZE_MAX - alignment)
        return NULL;
    void *memory = aligned_alloc(alignment, (num_bytes + alignment - 1) / alignment * alignment);
#if defined(MADV_HUGEPAGE)
    /* Only the whole huge pages, so that no memory is taken for the rest of the last one. */
    if (memory != NULL && alignment == HUGE_PAGE)
        (void)madvise(memory, num_bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
    return memory;
}
