/* Repeats recorded calls of ops; compiled once, for all dispatch levels.
 *
 * A program is a list of (op, its call structure). One run of it computes a whole decode step, so that the
 * threads of the pool find the next op before they fall asleep. See kernels/cpu/program.py.
 */
#include "clock.h"
#include "kernel.h"

typedef int op_function(struct pool *pool, const void *call);

struct recorded_call {
    op_function *op;
    size_t *call; /* begins with the number of rows */
};

struct program {
    size_t num_calls;
    const struct recorded_call *calls;
    uint64_t *progress;    /* counts calls for whoever watches from another process, or NULL */
    uint64_t *nanoseconds; /* num_calls: the time of each call is stored here, or NULL */
    size_t num_done;       /* out: calls that succeeded */
};

/* Calls the ops in order for num_rows rows, which may be fewer than were recorded. Returns the first status
 * that is not OK; what the calls before it did stays done. */
EXPORT int mambad_run_program(struct pool *pool, struct program *program, size_t num_rows)
{
    uint64_t start = program->nanoseconds == NULL ? 0 : now_nanoseconds();
    for (program->num_done = 0; program->num_done < program->num_calls; program->num_done++) {
        const struct recorded_call *recorded = &program->calls[program->num_done];
        *recorded->call = num_rows;
        int status = recorded->op(pool, recorded->call);
        if (status != OK)
            return status;
        if (program->progress != NULL)
            __atomic_fetch_add(program->progress, 1, __ATOMIC_RELAXED);
        if (program->nanoseconds != NULL) {
            uint64_t end = now_nanoseconds();
            program->nanoseconds[program->num_done] = end - start;
            start = end;
        }
    }
    return OK;
}
