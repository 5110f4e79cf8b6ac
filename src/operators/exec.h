/* The execution context's private side: its device, its workspace, and the mark of the running call. */
#ifndef DT_OPERATORS_EXEC_H
#define DT_OPERATORS_EXEC_H

#include "operators/registry.h"

/* What dt_exec.scratch points to. */
typedef struct dt_scratch {
    dt_device_ops device; /* a copy: entries that the provider's struct lacks are NULL */
    void *memory;         /* workspace of the running call */
    size_t bytes;
    uint64_t moves; /* of the workspace: what a recording refers to */
    bool recording;
    dt_exec_usage usage;
    struct dt_allocation *allocation; /* all blocks of dt_exec_alloc, for their sizes */
    size_t allocations, allocation_capacity;
    dt_hazard hazard;
    const dt_entry *running;  /* the entry whose code runs now: where dt_next_* goes on from */
    unsigned fork_generation; /* of the process that created it */
} dt_scratch;

static inline dt_scratch *dtp_scratch(const dt_exec *exec)
{
    return (dt_scratch *)exec->scratch;
}

/* At least `bytes` of 64-byte aligned device memory, valid until the next operator call on this context. */
dt_status dtp_exec_workspace(dt_exec *exec, size_t bytes, void **out, dt_err *err);

/* Grows by one in every forked child. */
unsigned dtp_fork_generation(void);
void dtp_watch_forks(void);

#endif
