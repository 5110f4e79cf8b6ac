/* How reference operators read and write tensors: element by element, in double, F32 or BF16 alike.
 * Speed is not a purpose here. */
#ifndef DT_REFERENCE_ACCESS_H
#define DT_REFERENCE_ACCESS_H

#include <deltune/tensor.h>

static inline double ref_load(const dt_tensor *t, int64_t index)
{
    return t->dtype == DT_BF16 ? dt_bf16_to_f32(((const uint16_t *)t->data)[index]) : ((const float *)t->data)[index];
}

static inline void ref_store(const dt_tensor *t, int64_t index, double value)
{
    if (t->dtype == DT_BF16)
        ((uint16_t *)t->data)[index] = dt_f32_to_bf16((float)value);
    else
        ((float *)t->data)[index] = (float)value;
}

static inline int64_t ref_at2(const dt_tensor *t, int64_t i, int64_t j) { return i * t->stride[0] + j; }

static inline int64_t ref_at3(const dt_tensor *t, int64_t i, int64_t j, int64_t k)
{
    return i * t->stride[0] + j * t->stride[1] + k;
}

static inline double ref_load2(const dt_tensor *t, int64_t i, int64_t j) { return ref_load(t, ref_at2(t, i, j)); }
static inline double ref_load3(const dt_tensor *t, int64_t i, int64_t j, int64_t k)
{
    return ref_load(t, ref_at3(t, i, j, k));
}
static inline void ref_store2(const dt_tensor *t, int64_t i, int64_t j, double value)
{
    ref_store(t, ref_at2(t, i, j), value);
}
static inline void ref_store3(const dt_tensor *t, int64_t i, int64_t j, int64_t k, double value)
{
    ref_store(t, ref_at3(t, i, j, k), value);
}

/* [T,D] seen as [T,1,D], so that per-row and per-head operators share one loop. [T,heads,D] stays as it is. */
static inline dt_tensor ref_heads(dt_tensor t)
{
    if (t.rank == 2) {
        t.shape[2] = t.shape[1];
        t.stride[2] = 1;
        t.stride[1] = t.shape[1];
        t.shape[1] = 1;
        t.rank = 3;
    }
    return t;
}

/* Writes 0 into rows [begin, shape[0]) of a [T,D] or [T,heads,D] tensor: capacity rows belong to no sample. */
static inline void ref_zero_rows(dt_tensor tensor, int64_t begin)
{
    dt_tensor t = ref_heads(tensor);
    for (int64_t i = begin; i < t.shape[0]; i++)
        for (int64_t h = 0; h < t.shape[1]; h++)
            for (int64_t d = 0; d < t.shape[2]; d++)
                ref_store3(&t, i, h, d, 0);
}

#endif
