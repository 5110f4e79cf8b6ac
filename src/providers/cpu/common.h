/* What the operators of the cpu provider share: argument checks of their capabilities, and loops over rows. */
#ifndef DT_CPU_COMMON_H
#define DT_CPU_COMMON_H

#include "providers/cpu/cpu.h"
#include "providers/cpu/rows.h"
#include <stdio.h>
#include <string.h>

/* Below this many elements a parallel loop costs more than it saves. */
enum { DTP_SERIAL_ELEMENTS = 16384 };

static inline int dtp_threads_for(const dt_exec *exec, int64_t elements)
{
    return elements < DTP_SERIAL_ELEMENTS || exec->threads < 1 ? 1 : exec->threads;
}

/* [T,D] seen as [T,1,D]. */
static inline dt_tensor dtp_heads(dt_tensor t)
{
    return t.rank == 2 ? dt_tensor_split_last(t, t.shape[1]) : t;
}

static inline float *dtp_row(const dt_tensor *t, int64_t row)
{
    return (float *)t->data + row * t->stride[0];
}
static inline float *dtp_head_row(const dt_tensor *t, int64_t row, int64_t head)
{
    return (float *)t->data + row * t->stride[0] + head * t->stride[1];
}

/* Zero in rows first..end-1 of an F32 view of rank 2 or 3 (capacity rows belong to no sample). Absent views are left.
 */
static inline void dtp_zero_rows(const dt_tensor *view, int64_t first, int64_t end)
{
    if (!dt_tensor_present(view))
        return;
    dt_tensor t = dtp_heads(*view);
    for (int64_t i = first; i < end; i++)
        for (int64_t h = 0; h < t.shape[1]; h++)
            memset(dtp_head_row(&t, i, h), 0, (size_t)t.shape[2] * sizeof(float));
}

/* The cpu provider computes in fp32: 1, or 0 with the reason when an activation is not F32. */
static inline int dtp_is_f32(const dt_tensor *t, const char *name, char *why, size_t why_size)
{
    if (!dt_tensor_present(t) || t->dtype == DT_F32)
        return 1;
    snprintf(why, why_size, "%s is %s, the cpu provider computes on F32 activations", name, dt_dtype_name(t->dtype));
    return 0;
}

/* n weights as fp32, plus `offset`. */
static inline void dtp_weight_f32(float *out, const dt_tensor *weight, int64_t n, float offset)
{
    if (weight->dtype == DT_BF16)
        dtp_row_kernels()->from_bf16(out, weight->data, n);
    else
        memcpy(out, weight->data, (size_t)n * sizeof(float));
    for (int64_t i = 0; offset != 0 && i < n; i++)
        out[i] += offset;
}

#endif
