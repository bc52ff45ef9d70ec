/* What this library is and which dispatch level this machine runs; compiled once, for no particular level.
 *
 * From build.py: SOURCES_DIGEST, and HAS_AVX512 and HAS_AVX2 where the library holds these levels besides
 * generic.
 */
#include <stdbool.h>
#include <string.h>

#include "kernel.h"

static bool is_supported(const char *level)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    (void)has_avx2;
#if defined(HAS_AVX512)
    if (strcmp(level, "avx512") == 0)
        return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
#endif
#if defined(HAS_AVX2)
    if (strcmp(level, "avx2") == 0)
        return has_avx2;
#endif
#endif
    return strcmp(level, "generic") == 0;
}

/* The level to use: the best one that this machine runs if `wanted` is NULL, else `wanted` itself, or NULL
 * where the library or the machine does not have it. */
EXPORT const char *mambad_dispatch_level(const char *wanted)
{
    static const char *const levels[] = {"avx512", "avx2", "generic"}; /* best first */
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if ((wanted == NULL || strcmp(wanted, levels[i]) == 0) && is_supported(levels[i]))
            return levels[i];
    return NULL;
}

/* Digest of the sources that this library was built from. */
EXPORT const char *mambad_sources_digest(void)
{
    return SOURCES_DIGEST;
}
