/* Places in the order of a row's weights, largest first, equal ones by id, without sorting them.
 *
 * Weights lie in [0, 1], where the bits of floats are ordered like their values. A search goes down three
 * levels of buckets, 10 bits each: it adds up the buckets from the top, stops in the one where the place lies,
 * and goes on with the members of that one. The last level's members are equal and stand in the order of ids.
 */
#ifndef MAMBAD_RANK_H
#define MAMBAD_RANK_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernel.h"

enum { RANK_LEVELS = 3, RANK_BITS = 10, NUM_BUCKETS = 1 << RANK_BITS };

struct bucket {
    double mass;
    size_t count;
};

/* Members of a row and memory for a search. */
struct ranking {
    const float *weights;
    const uint32_t *ids; /* num_ids of them, ascending */
    size_t num_ids;
    uint32_t *members;      /* room for num_ids */
    struct bucket *buckets; /* NUM_BUCKETS */
};

/* A place: the id there, how many ids stand up to it, it included, and their mass. */
struct place {
    uint32_t id;
    size_t count;
    double mass;
};

/* What a search looks for: the first place where all of this is reached. */
struct goal {
    size_t count; /* at least so many */
    double mass;  /* at least so much, or more than it if is_above */
    bool is_above;
};

static inline uint32_t weight_bits(const struct ranking *ranking, uint32_t id)
{
    uint32_t bits;
    memcpy(&bits, &ranking->weights[id], sizeof bits);
    return bits;
}

static inline bool is_reached(const struct goal *goal, size_t count, double mass)
{
    return count >= goal->count && (goal->is_above ? mass > goal->mass : mass >= goal->mass);
}

/* Sorts members into buckets by the bits of a level; the first level's are the highest bits. */
static inline void fill_buckets(const struct ranking *ranking, const uint32_t *members, size_t num_members,
                                unsigned shift)
{
    memset(ranking->buckets, 0, NUM_BUCKETS * sizeof *ranking->buckets);
    for (size_t i = 0; i < num_members; i++) {
        struct bucket *bucket = &ranking->buckets[weight_bits(ranking, members[i]) >> shift & (NUM_BUCKETS - 1)];
        bucket->mass += (double)ranking->weights[members[i]];
        bucket->count++;
    }
}

static inline size_t keep_bucket(const struct ranking *ranking, const uint32_t *members, size_t num_members,
                                 unsigned shift, size_t bucket)
{
    size_t num_kept = 0;
    for (size_t i = 0; i < num_members; i++) {
        uint32_t id = members[i];
        ranking->members[num_kept] = id;
        num_kept += (weight_bits(ranking, id) >> shift & (NUM_BUCKETS - 1)) == bucket;
    }
    return num_kept;
}

/* The first place that reaches the goal by count and mass, or the last one if none does. */
static inline struct place find_place(const struct ranking *ranking, const struct goal *goal)
{
    const uint32_t *members = ranking->ids;
    size_t num_members = ranking->num_ids;
    struct place before = {0, 0, 0.0};
    for (int level = 0; level < RANK_LEVELS; level++) {
        unsigned shift = (unsigned)(RANK_LEVELS - 1 - level) * RANK_BITS;
        fill_buckets(ranking, members, num_members, shift);
        size_t chosen = NUM_BUCKETS, last = NUM_BUCKETS;
        struct place before_last = before;
        for (size_t bucket = NUM_BUCKETS; bucket-- > 0 && chosen == NUM_BUCKETS;) {
            const struct bucket *it = &ranking->buckets[bucket];
            if (it->count == 0)
                continue;
            last = bucket;
            before_last = before;
            if (is_reached(goal, before.count + it->count, before.mass + it->mass))
                chosen = bucket;
            else {
                before.count += it->count;
                before.mass += it->mass;
            }
        }
        if (chosen == NUM_BUCKETS) {
            chosen = last;
            before = before_last;
        }
        num_members = keep_bucket(ranking, members, num_members, shift, chosen);
        members = ranking->members;
    }
    struct place place = before;
    for (size_t i = 0; i < num_members; i++) {
        place.id = members[i];
        place.count++;
        place.mass += (double)ranking->weights[members[i]];
        if (is_reached(goal, place.count, place.mass))
            break;
    }
    return place;
}

#endif
