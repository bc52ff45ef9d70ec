/* The time, for spinning and for profiles. */
#ifndef MAMBAD_CLOCK_H
#define MAMBAD_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t now_nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
