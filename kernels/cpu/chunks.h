/* Runs of tokens and the state slots they read and write: chunks of a prefill call, rows of an update call. */
#ifndef MAMBAD_CHUNKS_H
#define MAMBAD_CHUNKS_H

#include <stdbool.h>

#include "kernel.h"

enum { MAX_CHUNK_TOKENS = 64 };

/* kernels/chunks.py has the meaning of the fields. */
struct chunks {
    size_t num_chunks;
    const int32_t *starts;
    const int32_t *read_slots;
    const int32_t *write_slots;
    const int32_t *checkpoint_slots;
    const bool *has_initial_state;
};

/* The slots of an update call's rows. */
struct rows {
    const int32_t *read_slots;
    const int32_t *write_slots;
};

/* Consecutive tokens of one request. Slot 0 stands for a state of zeros when read, for nothing when written. */
struct span {
    size_t first_token;
    size_t num_tokens;
    size_t read_slot;
    size_t write_slot;
    size_t checkpoint_slot;
};

static inline struct span chunk_span(const struct chunks *chunks, size_t index)
{
    struct span span = {
        .first_token = (size_t)chunks->starts[index],
        .num_tokens = (size_t)(chunks->starts[index + 1] - chunks->starts[index]),
        .read_slot = chunks->has_initial_state[index] ? (size_t)chunks->read_slots[index] : 0,
        .write_slot = (size_t)chunks->write_slots[index],
        .checkpoint_slot = (size_t)chunks->checkpoint_slots[index],
    };
    return span;
}

static inline bool is_padding(const struct rows *rows, size_t row)
{
    return rows->write_slots[row] == 0;
}

static inline struct span row_span(const struct rows *rows, size_t row)
{
    struct span span = {
        .first_token = row,
        .num_tokens = 1,
        .read_slot = (size_t)rows->read_slots[row],
        .write_slot = (size_t)rows->write_slots[row],
        .checkpoint_slot = 0,
    };
    return span;
}

static inline bool is_index(int32_t value, size_t count)
{
    return value >= 0 && (size_t)value < count;
}

/* Starts must cut [0, num_tokens) into chunks of 1..MAX_CHUNK_TOKENS tokens. */
static inline enum status check_starts(const int32_t *starts, size_t num_chunks, size_t num_tokens)
{
    if (starts[0] != 0 || (size_t)starts[num_chunks] != num_tokens)
        return BAD_CHUNKS;
    for (size_t i = 0; i < num_chunks; i++) {
        int64_t length = (int64_t)starts[i + 1] - starts[i];
        if (length < 1 || length > MAX_CHUNK_TOKENS)
            return BAD_CHUNKS;
    }
    return OK;
}

static inline enum status check_chunks(const struct chunks *chunks, size_t num_tokens, size_t num_slots)
{
    enum status status = check_starts(chunks->starts, chunks->num_chunks, num_tokens);
    if (status != OK)
        return status;
    for (size_t i = 0; i < chunks->num_chunks; i++) {
        if (chunks->has_initial_state[i] && !is_index(chunks->read_slots[i], num_slots))
            return BAD_SLOT;
        if (!is_index(chunks->write_slots[i], num_slots) || !is_index(chunks->checkpoint_slots[i], num_slots))
            return BAD_SLOT;
    }
    return OK;
}

static inline enum status check_rows(const struct rows *rows, size_t num_rows, size_t num_slots)
{
    for (size_t i = 0; i < num_rows; i++)
        if (!is_index(rows->read_slots[i], num_slots) || !is_index(rows->write_slots[i], num_slots))
            return BAD_SLOT;
    return OK;
}

#endif
