/* Contexts: dt_ctx holds what a process knows (providers, slots); dt_exec says where and how one call runs.
 *
 * A dt_ctx is thread-safe. A dt_exec belongs to one thread at a time: it owns the scratch memory of the
 * calls made through it. There is no hidden global state: two contexts in one process do not meet. */
#ifndef DELTUNE_EXEC_H
#define DELTUNE_EXEC_H

#include <deltune/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dt_ctx dt_ctx;

typedef enum dt_device_kind {
    DT_DEVICE_CPU = 0,
    DT_DEVICE_CUDA = 1,
    DT_DEVICE_NPU = 2,
    DT_DEVICE_KINDS
} dt_device_kind;

/* "cpu", "cuda", "npu". */
DT_API const char *dt_device_name(dt_device_kind kind);

/* Creates a context that knows the built-in providers. */
DT_API dt_status dt_ctx_create(dt_ctx **ctx_out, dt_err *err);
DT_API void dt_ctx_free(dt_ctx *ctx); /* accepts NULL */

/* Where and how one call runs. Providers read the fields; only dt_exec_* change them. */
typedef struct dt_exec {
    size_t struct_size;
    dt_ctx *ctx;
    dt_device_kind device;
    int32_t device_index;
    int32_t threads; /* CPU threads a call may use, >= 1; results do not depend on it */
    void *stream;    /* device stream (cudaStream_t); NULL on the CPU */
    void *scratch;   /* private to dt_exec_* */
} dt_exec;

/* threads <= 0: as many as the process may use (affinity mask and cgroup quota).
 * Errors: DT_E_UNAVAILABLE when no provider offers the device, with each candidate's reason. */
DT_API dt_status dt_exec_create(dt_exec **exec_out, dt_ctx *ctx, dt_device_kind device, int device_index, int threads,
                                dt_err *err);
DT_API void dt_exec_free(dt_exec *exec); /* accepts NULL */

/* Device memory. On the CPU 64-byte aligned host memory. dt_exec_alloc fills with NaN in debug builds;
 * dt_exec_zero and dt_exec_copy_* are ordered with the operator calls of this context.
 * Errors: DT_E_NOMEM with the bytes asked for. */
DT_API dt_status dt_exec_alloc(dt_exec *exec, void **out, size_t bytes, dt_err *err);
DT_API void dt_exec_release(dt_exec *exec, void *memory); /* accepts NULL */
DT_API dt_status dt_exec_zero(dt_exec *exec, void *memory, size_t bytes, dt_err *err);
DT_API dt_status dt_exec_upload(dt_exec *exec, void *device, const void *host, size_t bytes, dt_err *err);
DT_API dt_status dt_exec_download(dt_exec *exec, void *host, const void *device, size_t bytes, dt_err *err);
DT_API dt_status dt_exec_copy(dt_exec *exec, void *to, const void *from, size_t bytes, dt_err *err);
/* Waits for everything queued; reports a device fault that happened since the last call. */
DT_API dt_status dt_exec_synchronize(dt_exec *exec, dt_err *err);

/* Makes sure that operator calls needing up to `bytes` of workspace allocate nothing later. */
DT_API dt_status dt_exec_reserve(dt_exec *exec, size_t bytes, dt_err *err);

/* Bytes allocated through this context, workspace included: now, and at most so far. */
typedef struct dt_exec_usage {
    uint64_t bytes, peak;
} dt_exec_usage;
DT_API dt_exec_usage dt_exec_memory_usage(const dt_exec *exec);
/* What the whole device has. Errors: DT_E_UNSUPPORTED where that is not known (host memory). */
DT_API dt_status dt_exec_device_memory(dt_exec *exec, uint64_t *free_out, uint64_t *total_out, dt_err *err);

/* ---- not waiting ----
 *
 * On a device, calls are queued; copies from and to memory of dt_exec_host_alloc are queued like calls, all others may
 * wait for the device. So a host that keeps ahead of its device copies through such memory, marks places in the queue,
 * and waits for a mark before it reads, or writes again, what was copied before it. */

/* Page-locked host memory, 64-byte aligned; ordinary memory where the device has no use for that. */
DT_API dt_status dt_exec_host_alloc(dt_exec *exec, void **out, size_t bytes, dt_err *err);
DT_API void dt_exec_host_release(dt_exec *exec, void *memory); /* accepts NULL */

typedef struct dt_mark dt_mark;
/* Puts a mark behind everything queued so far. *mark is NULL, then it is created, or a mark to move here. Where a
 * device has no marks, waiting for one waits for everything. Errors: DT_E_NOMEM. */
DT_API dt_status dt_exec_mark(dt_exec *exec, dt_mark **mark, dt_err *err);
/* Waits until everything before the mark is done; reports a device fault that happened since the last wait. */
DT_API dt_status dt_exec_wait(dt_exec *exec, dt_mark *mark, dt_err *err);
DT_API void dt_exec_mark_release(dt_exec *exec, dt_mark *mark); /* accepts NULL */

/* ---- recordings ----
 *
 * Between begin and end, operator calls, dt_exec_zero and dt_exec_copy are checked and recorded, not run; each replay
 * then runs them as one, with the same addresses and by-value arguments (what must change lies in device memory:
 * dt_step_values). Forbidden meanwhile, with DT_E_ARG: allocating (reserve the workspace first), waiting, copies that
 * touch host memory not from dt_exec_host_alloc, and another begin. */

typedef struct dt_recording dt_recording;
/* Whether the device can record at all; the begin of one that cannot is DT_E_UNSUPPORTED. */
DT_API bool dt_exec_can_record(const dt_exec *exec);
DT_API dt_status dt_exec_record_begin(dt_exec *exec, dt_err *err);
/* `out` NULL: what was recorded is dropped (a call between begin and end failed). */
DT_API dt_status dt_exec_record_end(dt_exec *exec, dt_recording **out, dt_err *err);
/* Queues what was recorded. Errors: DT_E_ARG when the context's workspace has moved since: record again. */
DT_API dt_status dt_exec_replay(dt_exec *exec, const dt_recording *recording, dt_err *err);
DT_API void dt_exec_recording_release(dt_exec *exec, dt_recording *recording); /* accepts NULL; waits until unused */

#ifdef __cplusplus
}
#endif
#endif
