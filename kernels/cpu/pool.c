/* The thread pool: see pool.h.
 *
 * Threads take ranges from a shared counter, so one that the system has put off holds up nobody: the others
 * take its share, and the caller waits only for threads that are inside a range. Who waits spins for a short,
 * fixed time, which bridges the gap between two ops of a step, and then sleeps, so that idle threads leave an
 * over-committed machine alone.
 */
#include "clock.h"
#include "kernel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

enum { SPIN_NANOSECONDS = 50000, LOOKS_PER_YIELD = 32, RANGES_PER_THREAD = 4, ALIGNMENT = 64 };

/* Bit of pool.gate that says that threads may come in; the bits below count those that are in. */
static const unsigned gate_is_open = 1u << 31;

struct worker {
    struct pool *pool;
    size_t thread;
    pthread_t handle;
};

struct pool {
    size_t num_threads;
    struct worker *workers; /* num_threads - 1; worker i is thread i + 1 */

    /* The job. Written by the caller while the gate is closed and nobody is in. */
    range_function *function;
    const void *op;
    size_t count;
    size_t range_size;

    atomic_size_t next_unit;
    atomic_uint gate;
    atomic_uint generation; /* counts jobs, and the stop */
    atomic_uint num_sleepers;
    atomic_bool is_stopping;

    pthread_mutex_t mutex;
    pthread_cond_t job_came;
    pthread_cond_t all_left;

    float *scratch;
    size_t scratch_floats;
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Spins until *value differs from `old` (is_equal false) or equals it (true); false when time is up. After the
 * first few looks it lets others run between two: on an over-committed machine the one who is waited for may
 * need this very processor. */
static bool spin_until(atomic_uint *value, unsigned old, bool is_equal)
{
    uint64_t end = 0;
    for (;;) {
        for (int i = 0; i < LOOKS_PER_YIELD; i++) {
            if ((atomic_load(value) == old) == is_equal)
                return true;
            relax();
        }
        uint64_t now = now_nanoseconds();
        if (end == 0)
            end = now + SPIN_NANOSECONDS;
        else if (now >= end)
            return false;
        else
            sched_yield();
    }
}

static void take_ranges(struct pool *pool, size_t thread)
{
    for (;;) {
        size_t begin = atomic_fetch_add(&pool->next_unit, pool->range_size);
        if (begin >= pool->count)
            return;
        size_t left = pool->count - begin;
        pool->function(pool->op, begin, begin + (left < pool->range_size ? left : pool->range_size), thread);
    }
}

static bool enter(struct pool *pool)
{
    unsigned gate = atomic_load(&pool->gate);
    while (gate & gate_is_open)
        if (atomic_compare_exchange_weak(&pool->gate, &gate, gate + 1))
            return true;
    return false;
}

static void leave(struct pool *pool)
{
    if (atomic_fetch_sub(&pool->gate, 1) != 1)
        return;
    /* The last one out of a closed gate; the lock makes sure that the caller is not about to fall asleep. */
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_signal(&pool->all_left);
    pthread_mutex_unlock(&pool->mutex);
}

static void sleep_until_job(struct pool *pool, unsigned seen)
{
    pthread_mutex_lock(&pool->mutex);
    /* Announce first, look second; post_job does it the other way round, so one of the two sees the other. */
    atomic_fetch_add(&pool->num_sleepers, 1);
    while (atomic_load(&pool->generation) == seen)
        pthread_cond_wait(&pool->job_came, &pool->mutex);
    atomic_fetch_sub(&pool->num_sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    struct pool *pool = worker->pool;
    unsigned seen = 0;
    for (;;) {
        if (!spin_until(&pool->generation, seen, false))
            sleep_until_job(pool, seen);
        seen = atomic_load(&pool->generation);
        if (atomic_load(&pool->is_stopping))
            return NULL;
        if (enter(pool)) {
            take_ranges(pool, worker->thread);
            leave(pool);
        }
    }
}

/* Tells the threads that there is something new, waking at most max_woken of those that sleep. */
static void post(struct pool *pool, size_t max_woken)
{
    atomic_fetch_add(&pool->generation, 1);
    if (atomic_load(&pool->num_sleepers) == 0)
        return;
    pthread_mutex_lock(&pool->mutex);
    for (size_t i = 0; i < max_woken; i++)
        pthread_cond_signal(&pool->job_came);
    pthread_mutex_unlock(&pool->mutex);
}

static void close_gate_and_wait(struct pool *pool)
{
    atomic_fetch_and(&pool->gate, ~gate_is_open);
    if (spin_until(&pool->gate, 0, true))
        return;
    pthread_mutex_lock(&pool->mutex);
    while (atomic_load(&pool->gate) != 0)
        pthread_cond_wait(&pool->all_left, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

/* Ranges of one size, as many for each thread, none smaller than the grain. */
static size_t choose_range_size(const struct pool *pool, size_t count, size_t grain)
{
    size_t num_ranges = count / max_size(grain, 1), threads = pool->num_threads;
    if (threads == 1 || num_ranges < 2)
        return count;
    num_ranges = min_size(num_ranges, threads * RANGES_PER_THREAD);
    if (num_ranges > threads)
        num_ranges = num_ranges / threads * threads;
    return divide_up(count, num_ranges);
}

void pool_run(struct pool *pool, size_t count, size_t grain, range_function *function, const void *op)
{
    if (count == 0)
        return;
    size_t range_size = choose_range_size(pool, count, grain);
    if (range_size >= count) {
        function(op, 0, count, 0);
        return;
    }
    pool->function = function;
    pool->op = op;
    pool->count = count;
    pool->range_size = range_size;
    atomic_store(&pool->next_unit, 0);
    atomic_store(&pool->gate, gate_is_open);
    size_t num_others = (count - 1) / range_size;
    post(pool, num_others < pool->num_threads - 1 ? num_others : pool->num_threads - 1);
    take_ranges(pool, 0);
    close_gate_and_wait(pool);
}

size_t pool_num_threads(const struct pool *pool)
{
    return pool->num_threads;
}

float *pool_scratch(struct pool *pool, size_t num_floats)
{
    if (num_floats > pool->scratch_floats) {
        size_t num_bytes = (num_floats * sizeof(float) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        free(pool->scratch);
        pool->scratch = aligned_alloc(ALIGNMENT, num_bytes);
        pool->scratch_floats = pool->scratch == NULL ? 0 : num_floats;
    }
    return pool->scratch;
}

/* Ends the first num_started workers and frees everything. */
static void destroy(struct pool *pool, size_t num_started)
{
    atomic_store(&pool->is_stopping, true);
    post(pool, num_started);
    for (size_t i = 0; i < num_started; i++)
        pthread_join(pool->workers[i].handle, NULL);
    pthread_cond_destroy(&pool->all_left);
    pthread_cond_destroy(&pool->job_came);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->scratch);
    free(pool->workers);
    free(pool);
}

EXPORT struct pool *mambad_pool_create(int num_threads)
{
    struct pool *pool = calloc(1, sizeof *pool);
    struct worker *workers = calloc((size_t)num_threads, sizeof *workers);
    if (pool == NULL || workers == NULL) {
        free(pool);
        free(workers);
        return NULL;
    }
    pool->num_threads = (size_t)num_threads;
    pool->workers = workers;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->job_came, NULL);
    pthread_cond_init(&pool->all_left, NULL);
    for (size_t i = 0; i + 1 < pool->num_threads; i++) {
        workers[i].pool = pool;
        workers[i].thread = i + 1;
        if (pthread_create(&workers[i].handle, NULL, worker_main, &workers[i]) != 0) {
            destroy(pool, i);
            return NULL;
        }
    }
    return pool;
}

EXPORT void mambad_pool_destroy(struct pool *pool)
{
    destroy(pool, pool->num_threads - 1);
}
