/* The execution context's private side: its device, its workspace, and the mark of the running call. */
#ifndef DT_OPERATORS_EXEC_H
#define DT_OPERATORS_EXEC_H

#include "operators/registry.h"

/* What dt_exec.scratch points to. */
typedef struct dt_scratch {
    const dt_device_ops *device;
    void *memory; /* workspace of the running call */
    size_t bytes;
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
