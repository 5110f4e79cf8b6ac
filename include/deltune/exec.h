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

#ifdef __cplusplus
}
#endif
#endif
