/* A device tensor with NaN in the memory on both sides of it. */
#ifndef DT_CONFORMANCE_GUARDED_H
#define DT_CONFORMANCE_GUARDED_H

#include <deltune/exec.h>

typedef struct dt_guarded {
    void *block; /* guard, data, guard: device memory */
    size_t bytes;
    dt_tensor tensor; /* points behind the first guard */
} dt_guarded;

/* A contiguous tensor of the given shape and dtype, filled with NaN. */
dt_status dtp_guarded_create(dt_guarded *out, dt_exec *exec, dt_dtype dtype, int rank, const int64_t *shape,
                             dt_err *err);
void dtp_guarded_free(dt_guarded *g, dt_exec *exec); /* accepts a zeroed one */
/* From and to fp32 on the host, rounding to the tensor's dtype (F32 or BF16) or copying I32. */
dt_status dtp_guarded_write(dt_guarded *g, dt_exec *exec, const float *values, dt_err *err);
dt_status dtp_guarded_read(const dt_guarded *g, dt_exec *exec, float *values, dt_err *err);
/* DT_E_INTERNAL "... wrote N bytes before|behind ..." when a guard was touched. */
dt_status dtp_guarded_verify(const dt_guarded *g, dt_exec *exec, const char *name, dt_err *err);

#endif
