/* The two elementwise gates differ in their row kernels only. */
#ifndef DT_CPU_GATES_CPU_H
#define DT_CPU_GATES_CPU_H

#include "providers/cpu/common.h"
#include <deltune/op/activation.h>

static inline int gate_verify(const dt_exec *exec, const void *args, char *why, size_t why_size)
{
    (void)exec;
    const dt_gate_args *a = args;
    return dtp_is_f32(&a->x, "x", why, why_size) && dtp_is_f32(&a->gate, "gate", why, why_size) &&
           dtp_is_f32(&a->y, "y", why, why_size) && dtp_is_f32(&a->dy, "dy", why, why_size) &&
           dtp_is_f32(&a->dx, "dx", why, why_size) && dtp_is_f32(&a->dgate, "dgate", why, why_size);
}

typedef void (*gate_row)(float *y, const float *x, const float *g, int64_t n);
typedef void (*gate_backward_row)(float *dx, float *dg, const float *x, const float *g, const float *dy, int64_t n);

static inline void gate_forward(const dt_exec *exec, const dt_gate_args *a, gate_row kernel)
{
    dt_tensor x = dtp_heads(a->x), gate = dtp_heads(a->gate), y = dtp_heads(a->y);
#pragma omp parallel for num_threads(dtp_threads_for(exec, dt_tensor_numel(&x))) schedule(static)
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t h = 0; h < x.shape[1]; h++)
            kernel(dtp_head_row(&y, t, h), dtp_head_row(&x, t, h), dtp_head_row(&gate, t, h), x.shape[2]);
    dtp_zero_rows(&a->y, a->T, a->y.shape[0]);
}

static inline void gate_backward(const dt_exec *exec, const dt_gate_args *a, gate_backward_row kernel)
{
    dt_tensor x = dtp_heads(a->x), gate = dtp_heads(a->gate), dy = dtp_heads(a->dy);
    dt_tensor dx = dtp_heads(a->dx), dgate = dtp_heads(a->dgate);
#pragma omp parallel for num_threads(dtp_threads_for(exec, dt_tensor_numel(&x))) schedule(static)
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t h = 0; h < x.shape[1]; h++)
            kernel(dtp_head_row(&dx, t, h), dtp_head_row(&dgate, t, h), dtp_head_row(&x, t, h),
                   dtp_head_row(&gate, t, h), dtp_head_row(&dy, t, h), x.shape[2]);
    dtp_zero_rows(&a->dx, a->T, a->dx.shape[0]);
    dtp_zero_rows(&a->dgate, a->T, a->dgate.shape[0]);
}

#endif
