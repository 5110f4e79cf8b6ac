/* Host memory as a device: what dt_exec_alloc and its relatives do on the CPU. Calls run at once, in order. */
#include "core/memory.h"
#include "providers/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

static dt_status host_open(dt_exec *exec, dt_err *err)
{
    (void)err;
    exec->stream = NULL;
    return DT_OK;
}

static void host_close(dt_exec *exec)
{
    (void)exec;
}

static dt_status host_alloc(dt_exec *exec, void **out, size_t bytes, dt_err *err)
{
    (void)exec;
    void *memory = dtp_alloc_aligned(bytes ? bytes : 1);
    if (!memory)
        return dt_fail(err, DT_E_NOMEM, "cannot allocate %zu bytes of host memory", bytes);
#ifndef NDEBUG
    memset(memory, 0xff, bytes); /* NaN in every float format: a read of unwritten memory shows */
#endif
    *out = memory;
    return DT_OK;
}

static void host_release(dt_exec *exec, void *memory)
{
    (void)exec;
    free(memory);
}

static dt_status host_zero(dt_exec *exec, void *memory, size_t bytes, dt_err *err)
{
    (void)exec;
    (void)err;
    if (bytes)
        memset(memory, 0, bytes);
    return DT_OK;
}

static dt_status host_copy(dt_exec *exec, void *to, const void *from, size_t bytes, dt_err *err)
{
    (void)exec;
    (void)err;
    if (bytes)
        memmove(to, from, bytes);
    return DT_OK;
}

static dt_status host_synchronize(dt_exec *exec, dt_err *err)
{
    (void)exec;
    (void)err;
    return DT_OK;
}

const dt_device_ops dtp_cpu_device_ops = {
    .struct_size = sizeof(dt_device_ops),
    .open = host_open,
    .close = host_close,
    .alloc = host_alloc,
    .release = host_release,
    .zero = host_zero,
    .copy = host_copy,
    .synchronize = host_synchronize,
};
