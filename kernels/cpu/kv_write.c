/* Copies the keys and values of tokens into their blocks. A unit of work is a token. */
#include <string.h>

#include "chunks.h"

/* attention_calls.py mirrors the fields' order. */
struct kv_write_call {
    size_t num_tokens;
    const float *k; /* (num_tokens, row_floats), tokens k_stride apart */
    size_t k_stride;
    const float *v;
    size_t v_stride;
    float *k_cache; /* (num_blocks, block_size, row_floats) */
    float *v_cache;
    const int32_t *positions;
    const int32_t *block_table; /* (num_table_rows, num_table_columns) */
    const int32_t *table_rows;
    size_t row_floats;
    size_t num_blocks;
    size_t block_size;
    size_t num_table_rows;
    size_t num_table_columns;
};

static int32_t block_of(const struct kv_write_call *op, size_t token)
{
    size_t column = (size_t)op->positions[token] / op->block_size;
    return op->block_table[(size_t)op->table_rows[token] * op->num_table_columns + column];
}

static void write_tokens(const void *argument, size_t begin, size_t end, size_t thread)
{
    const struct kv_write_call *op = argument;
    (void)thread;
    for (size_t token = begin; token < end; token++) {
        size_t block = (size_t)block_of(op, token);
        if (block == 0)
            continue;
        size_t to = (block * op->block_size + (size_t)op->positions[token] % op->block_size) * op->row_floats;
        memcpy(op->k_cache + to, op->k + token * op->k_stride, op->row_floats * sizeof(float));
        memcpy(op->v_cache + to, op->v + token * op->v_stride, op->row_floats * sizeof(float));
    }
}

EXPORT int KERNEL(kv_write)(struct pool *pool, const struct kv_write_call *op)
{
    for (size_t token = 0; token < op->num_tokens; token++) {
        if (!is_index(op->table_rows[token], op->num_table_rows))
            return BAD_SLOT;
        if (!is_index(op->positions[token], op->num_table_columns * op->block_size) ||
            !is_index(block_of(op, token), op->num_blocks))
            return BAD_BLOCK;
    }
    pool_run(pool, op->num_tokens, grain_for(op->row_floats), write_tokens, op);
    return OK;
}
