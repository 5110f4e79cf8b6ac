#include "operators/exec.h"

#include "core/memory.h"
#include "core/threads.h"

#include <stdlib.h>
#include <string.h>

/* Counts forks seen from this process: what a child inherits from its parent's devices is not usable. Process-wide,
 * because a fork is. */
static atomic_uint fork_generation;

static void count_fork(void)
{
    atomic_fetch_add(&fork_generation, 1);
}

unsigned dtp_fork_generation(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, dtp_watch_forks);
    return atomic_load_explicit(&fork_generation, memory_order_relaxed);
}

void dtp_watch_forks(void)
{
    pthread_atfork(NULL, NULL, count_fork);
}

static const dt_device_ops *device_of(const dt_exec *exec)
{
    return &((const dt_scratch *)exec->scratch)->device;
}

/* The functions of a device; a plug-in compiled with an older header brings fewer. */
static dt_device_ops functions_of(const dt_device_ops *given)
{
    dt_device_ops ops = {0};
    memcpy(&ops, given, given->struct_size < sizeof ops ? given->struct_size : sizeof ops);
    return ops;
}

/* Why no provider drives the device: every provider's reason. */
static dt_status no_device(dt_ctx *ctx, dt_device_kind device, dt_err *err)
{
    dt_buf why = {0};
    for (const dt_registration *r = ctx->registrations; r; r = r->next)
        if (!r->replaced && r->provider->device == device)
            dtp_buf_printf(&why, "%s%s: %s", why.length ? "; " : "", r->provider->name,
                           r->available ? "only adds operators to a device that another provider drives" : r->why);
    if (!why.length)
        dtp_buf_printf(
            &why,
            "no plug-in for it is loaded: it would be libdeltune-%s.so, beside the program or named with --plugin",
            dt_device_name(device));
    dt_fail(err, DT_E_UNAVAILABLE, "no provider can drive the device \"%s\" (%s)", dt_device_name(device), why.data);
    dtp_buf_free(&why);
    return DT_E_UNAVAILABLE;
}

/* In a forked child: what the parent found out about its devices says nothing here. */
static dt_status probe_after_fork(dt_ctx *ctx, dt_err *err)
{
    if (ctx->fork_generation == dtp_fork_generation())
        return DT_OK;
    ctx->fork_generation = dtp_fork_generation();
    dt_status status = DT_OK;
    for (dt_registration *r = ctx->registrations; r; r = r->next)
        r->available = false; /* success of the parent is not kept */
    for (int device = 0; device < DT_DEVICE_KINDS && status == DT_OK; device++)
        status = dt_ctx_probe_again(ctx, (dt_device_kind)device, err);
    return status;
}

dt_status dt_exec_create(dt_exec **exec_out, dt_ctx *ctx, dt_device_kind device, int device_index, int threads,
                         dt_err *err)
{
    dtp_ctx_lock(ctx);
    dt_status status = probe_after_fork(ctx, err);
    const dt_device_ops *ops = status == DT_OK ? dtp_ctx_device_ops(ctx, device) : NULL;
    dt_exec *exec = NULL;
    dt_scratch *scratch = NULL;
    if (status == DT_OK && !ops)
        status = no_device(ctx, device, err);
    if (status == DT_OK) {
        exec = dtp_calloc(1, sizeof *exec);
        scratch = dtp_calloc(1, sizeof *scratch);
        if (!exec || !scratch)
            status = dt_fail(err, DT_E_NOMEM, "cannot allocate an execution context");
    }
    if (status == DT_OK) {
        scratch->device = functions_of(ops);
        scratch->fork_generation = dtp_fork_generation();
        *exec = (dt_exec){.struct_size = sizeof *exec,
                          .ctx = ctx,
                          .device = device,
                          .device_index = device_index,
                          .threads = threads > 0 ? threads : dtp_available_threads(),
                          .scratch = scratch};
        status = ops->open(exec, err);
    }
    if (status == DT_OK) {
        scratch->hazard.next = ctx->hazards;
        ctx->hazards = &scratch->hazard;
        *exec_out = exec;
    } else {
        free(scratch);
        free(exec);
    }
    dtp_ctx_unlock(ctx);
    return status;
}

void dt_exec_free(dt_exec *exec)
{
    if (!exec)
        return;
    dt_scratch *scratch = dtp_scratch(exec);
    dtp_ctx_lock(exec->ctx);
    dt_hazard **link = &exec->ctx->hazards;
    while (*link && *link != &scratch->hazard)
        link = &(*link)->next;
    if (*link)
        *link = scratch->hazard.next;
    dtp_ctx_unlock(exec->ctx);
    if (scratch->fork_generation == dtp_fork_generation()) { /* a parent's device objects are not the child's to free */
        dt_exec_release(exec, scratch->memory);
        scratch->device.close(exec);
    }
    free(scratch->allocation);
    free(scratch);
    free(exec);
}

/* ---- memory ---- */

typedef struct dt_allocation {
    const void *memory;
    size_t bytes;
} dt_allocation;

static dt_status not_while_recording(const dt_exec *exec, const char *what, dt_err *err)
{
    return dtp_scratch(exec)->recording
               ? dt_fail(err, DT_E_ARG, "%s inside a recording, which can only queue work", what)
               : DT_OK;
}

dt_status dt_exec_alloc(dt_exec *exec, void **out, size_t bytes, dt_err *err)
{
    dt_scratch *s = dtp_scratch(exec);
    dt_status status = not_while_recording(exec, "memory is allocated", err);
    if (status == DT_OK &&
        !dtp_grow((void **)&s->allocation, &s->allocation_capacity, s->allocations + 1, sizeof *s->allocation))
        status = dt_fail(err, DT_E_NOMEM, "no memory for the list of allocations");
    if (status == DT_OK)
        status = s->device.alloc(exec, out, bytes, err);
    if (status != DT_OK)
        return status;
    s->allocation[s->allocations++] = (dt_allocation){*out, bytes};
    s->usage.bytes += bytes;
    s->usage.peak = s->usage.bytes > s->usage.peak ? s->usage.bytes : s->usage.peak;
    return DT_OK;
}

void dt_exec_release(dt_exec *exec, void *memory)
{
    dt_scratch *s = dtp_scratch(exec);
    if (!memory)
        return;
    for (size_t i = s->allocations; i-- > 0;) /* mostly the last ones */
        if (s->allocation[i].memory == memory) {
            s->usage.bytes -= s->allocation[i].bytes;
            s->allocation[i] = s->allocation[--s->allocations];
            break;
        }
    s->device.release(exec, memory);
}

dt_exec_usage dt_exec_memory_usage(const dt_exec *exec)
{
    return dtp_scratch(exec)->usage;
}

dt_status dt_exec_device_memory(dt_exec *exec, uint64_t *free_out, uint64_t *total_out, dt_err *err)
{
    if (!device_of(exec)->memory)
        return dt_fail(err, DT_E_UNSUPPORTED, "the device \"%s\" does not tell its memory",
                       dt_device_name(exec->device));
    return device_of(exec)->memory(exec, free_out, total_out, err);
}

dt_status dt_exec_host_alloc(dt_exec *exec, void **out, size_t bytes, dt_err *err)
{
    if (device_of(exec)->host_alloc)
        return device_of(exec)->host_alloc(exec, out, bytes, err);
    *out = dtp_alloc_aligned(bytes ? bytes : 1);
    return *out ? DT_OK : dt_fail(err, DT_E_NOMEM, "cannot allocate %zu bytes of host memory", bytes);
}

void dt_exec_host_release(dt_exec *exec, void *memory)
{
    if (memory && device_of(exec)->host_alloc)
        device_of(exec)->host_release(exec, memory);
    else
        free(memory);
}

dt_status dt_exec_zero(dt_exec *exec, void *memory, size_t bytes, dt_err *err)
{
    return device_of(exec)->zero(exec, memory, bytes, err);
}

dt_status dt_exec_copy(dt_exec *exec, void *to, const void *from, size_t bytes, dt_err *err)
{
    return device_of(exec)->copy(exec, to, from, bytes, err);
}

dt_status dt_exec_upload(dt_exec *exec, void *device, const void *host, size_t bytes, dt_err *err)
{
    return device_of(exec)->copy(exec, device, host, bytes, err);
}

dt_status dt_exec_download(dt_exec *exec, void *host, const void *device, size_t bytes, dt_err *err)
{
    return device_of(exec)->copy(exec, host, device, bytes, err);
}

dt_status dt_exec_synchronize(dt_exec *exec, dt_err *err)
{
    dt_status status = not_while_recording(exec, "the host waits", err);
    return status == DT_OK ? device_of(exec)->synchronize(exec, err) : status;
}

dt_status dt_exec_reserve(dt_exec *exec, size_t bytes, dt_err *err)
{
    dt_scratch *scratch = dtp_scratch(exec);
    if (bytes <= scratch->bytes)
        return DT_OK;
    dt_status status = dt_exec_synchronize(exec, err); /* queued work may still use the old block */
    if (status != DT_OK)
        return status;
    dt_exec_release(exec, scratch->memory);
    scratch->memory = NULL;
    scratch->bytes = 0;
    scratch->moves++;
    status = dt_exec_alloc(exec, &scratch->memory, bytes, err);
    if (status != DT_OK)
        return dt_err_prefix(err, "operator workspace: ");
    scratch->bytes = bytes;
    return DT_OK;
}

dt_status dtp_exec_workspace(dt_exec *exec, size_t bytes, void **out, dt_err *err)
{
    dt_status status = dt_exec_reserve(exec, bytes, err);
    if (status == DT_OK)
        *out = dtp_scratch(exec)->memory;
    return status;
}

/* ---- marks: a device's own, or nothing where waiting means waiting for everything ---- */

dt_status dt_exec_mark(dt_exec *exec, dt_mark **mark, dt_err *err)
{
    if (device_of(exec)->mark)
        return device_of(exec)->mark(exec, (void **)mark, err);
    *mark = (dt_mark *)exec->scratch; /* anything that is not NULL */
    return DT_OK;
}

dt_status dt_exec_wait(dt_exec *exec, dt_mark *mark, dt_err *err)
{
    dt_status status = not_while_recording(exec, "the host waits", err);
    if (status != DT_OK)
        return status;
    return device_of(exec)->mark ? device_of(exec)->wait(exec, mark, err) : device_of(exec)->synchronize(exec, err);
}

void dt_exec_mark_release(dt_exec *exec, dt_mark *mark)
{
    if (mark && device_of(exec)->mark)
        device_of(exec)->mark_release(exec, mark);
}

/* ---- recordings ---- */

struct dt_recording {
    void *of_device;
    uint64_t moves; /* of the workspace, when it was recorded */
};

bool dt_exec_can_record(const dt_exec *exec)
{
    return device_of(exec)->record_begin != NULL;
}

dt_status dt_exec_record_begin(dt_exec *exec, dt_err *err)
{
    if (!dt_exec_can_record(exec))
        return dt_fail(err, DT_E_UNSUPPORTED, "the device \"%s\" cannot record calls", dt_device_name(exec->device));
    dt_status status = not_while_recording(exec, "a recording is begun", err);
    if (status == DT_OK)
        status = device_of(exec)->record_begin(exec, err);
    if (status == DT_OK)
        dtp_scratch(exec)->recording = true;
    return status;
}

dt_status dt_exec_record_end(dt_exec *exec, dt_recording **out, dt_err *err)
{
    dt_scratch *s = dtp_scratch(exec);
    if (!s->recording)
        return dt_fail(err, DT_E_ARG, "a recording is ended that was not begun");
    s->recording = false;
    dt_recording *recording = out ? dtp_calloc(1, sizeof *recording) : NULL;
    dt_status status = s->device.record_end(exec, recording ? &recording->of_device : NULL, err);
    if (status == DT_OK && out && !recording)
        status = dt_fail(err, DT_E_NOMEM, "no memory for a recording");
    if (status != DT_OK || !out) {
        free(recording);
        return status;
    }
    recording->moves = s->moves;
    *out = recording;
    return DT_OK;
}

dt_status dt_exec_replay(dt_exec *exec, const dt_recording *recording, dt_err *err)
{
    if (recording->moves != dtp_scratch(exec)->moves)
        return dt_fail(err, DT_E_ARG, "the workspace has moved since this was recorded: record it again");
    dt_status status = not_while_recording(exec, "a recording is replayed", err);
    return status == DT_OK ? device_of(exec)->replay(exec, recording->of_device, err) : status;
}

void dt_exec_recording_release(dt_exec *exec, dt_recording *recording)
{
    if (!recording)
        return;
    device_of(exec)->recording_release(exec, recording->of_device);
    free(recording);
}
