#include "operators/exec.h"

#include "core/memory.h"
#include "core/threads.h"
#include "operators/registry.h"

#include <stdlib.h>

/* What dt_exec.scratch points to. */
typedef struct dt_scratch {
    const dt_device_ops *device;
    void *memory;
    size_t bytes;
} dt_scratch;

static const dt_device_ops *device_of(const dt_exec *exec)
{
    return ((const dt_scratch *)exec->scratch)->device;
}

/* Why no provider drives the device: every candidate's reason. */
static dt_status no_device(dt_ctx *ctx, dt_device_kind device, dt_err *err)
{
    dt_buf why = {0};
    const dt_provider *said = NULL;
    for (int op = 0; op < DT_OP_COUNT; op++) {
        const dt_slot_table *table = dtp_slot_table(ctx, (dt_op)op, device);
        for (size_t i = 0; table && i < table->n; i++)
            if (!table->candidate[i]->available && table->candidate[i]->provider != said) {
                said = table->candidate[i]->provider;
                dtp_buf_printf(&why, "%s%s: %s", why.length ? "; " : "", said->name, table->candidate[i]->why);
            }
    }
    dt_fail(err, DT_E_UNAVAILABLE, "no provider can drive the device \"%s\" (%s)", dt_device_name(device),
            why.length ? why.data : "no plug-in for it is loaded");
    dtp_buf_free(&why);
    return DT_E_UNAVAILABLE;
}

dt_status dt_exec_create(dt_exec **exec_out, dt_ctx *ctx, dt_device_kind device, int device_index, int threads,
                         dt_err *err)
{
    const dt_device_ops *ops = dtp_ctx_device_ops(ctx, device);
    if (!ops)
        return no_device(ctx, device, err);
    dt_exec *exec = dtp_calloc(1, sizeof *exec);
    dt_scratch *scratch = dtp_calloc(1, sizeof *scratch);
    if (!exec || !scratch) {
        free(exec);
        free(scratch);
        return dt_fail(err, DT_E_NOMEM, "cannot allocate an execution context");
    }
    scratch->device = ops;
    *exec = (dt_exec){.struct_size = sizeof *exec,
                      .ctx = ctx,
                      .device = device,
                      .device_index = device_index,
                      .threads = threads > 0 ? threads : dtp_available_threads(),
                      .scratch = scratch};
    dt_status status = ops->open(exec, err);
    if (status != DT_OK) {
        free(scratch);
        free(exec);
        return status;
    }
    *exec_out = exec;
    return DT_OK;
}

void dt_exec_free(dt_exec *exec)
{
    if (!exec)
        return;
    dt_scratch *scratch = exec->scratch;
    scratch->device->release(exec, scratch->memory);
    scratch->device->close(exec);
    free(scratch);
    free(exec);
}

dt_status dt_exec_alloc(dt_exec *exec, void **out, size_t bytes, dt_err *err)
{
    return device_of(exec)->alloc(exec, out, bytes, err);
}

void dt_exec_release(dt_exec *exec, void *memory)
{
    if (memory)
        device_of(exec)->release(exec, memory);
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
    return device_of(exec)->synchronize(exec, err);
}

dt_status dt_exec_reserve(dt_exec *exec, size_t bytes, dt_err *err)
{
    dt_scratch *scratch = exec->scratch;
    if (bytes <= scratch->bytes)
        return DT_OK;
    dt_status status = dt_exec_synchronize(exec, err); /* queued work may still use the old block */
    if (status != DT_OK)
        return status;
    dt_exec_release(exec, scratch->memory);
    scratch->memory = NULL;
    scratch->bytes = 0;
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
        *out = ((dt_scratch *)exec->scratch)->memory;
    return status;
}
