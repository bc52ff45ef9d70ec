/* What this library is and which dispatch level this machine runs; compiled once, for no particular level.
 *
 * From build.py: SOURCES_DIGEST, and HAS_<LEVEL> for each level that the library holds.
 */
#include <stdbool.h>
#include <string.h>

#include "kernel.h"

/* What linear_check.c says; declared for the levels that are asked. */
int mambad_amx_linear_is_right(void);

/* Why a level that the machine promises is not used, or NULL. */
static const char *note;

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

/* Asked of the processor itself, because not every compiler knows these features by name. */
static bool has_avx512_bf16(void)
{
    unsigned eax, ebx, ecx, edx;
    if (!has_avx512() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(ecx >> 11 & 1)) /* VNNI */
        return false;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 5 & 1);
}

#if defined(HAS_AMX)
/* Tiles need the processor and, once a process, the kernel's permission for their large registers. */
static bool has_tiles(void)
{
#if defined(EMULATE_TILES)
    return has_avx512_bf16();
#else
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    unsigned eax, ebx, ecx, edx;
    if (!has_avx512_bf16() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx))
        return false;
    bool has_bf16 = edx >> 22 & 1, has_tile = edx >> 24 & 1, has_int8 = edx >> 25 & 1;
    return has_bf16 && has_tile && has_int8 &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#endif
}

static bool has_amx(void)
{
    if (!has_tiles())
        return false;
    if (mambad_amx_linear_is_right())
        return true;
    note = "amx multiplies wrongly here and is not used";
    return false;
}
#endif
#endif

#if defined(HAS_GENERIC)
static bool has_generic(void)
{
    return true;
}
#endif

struct level {
    const char *name;
    bool (*is_supported)(void);
};

/* The best first. */
static const struct level levels[] = {
#if defined(HAS_AMX)
    {"amx", has_amx},
#endif
#if defined(HAS_AVX512BF16)
    {"avx512bf16", has_avx512_bf16},
#endif
#if defined(HAS_AVX512)
    {"avx512", has_avx512},
#endif
#if defined(HAS_AVX2)
    {"avx2", has_avx2},
#endif
#if defined(HAS_GENERIC)
    {"generic", has_generic},
#endif
};

/* The level to use: the best one that this machine runs if `wanted` is NULL, else `wanted` itself, or NULL
 * where the library or the machine does not have it. */
EXPORT const char *mambad_dispatch_level(const char *wanted)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if ((wanted == NULL || strcmp(wanted, levels[i].name) == 0) && levels[i].is_supported())
            return levels[i].name;
    return NULL;
}

/* Why mambad_dispatch_level passed over a level that the machine promises, or NULL; for the log. */
EXPORT const char *mambad_dispatch_note(void)
{
    return note;
}

/* Digest of the sources that this library was built from. */
EXPORT const char *mambad_sources_digest(void)
{
    return SOURCES_DIGEST;
}
