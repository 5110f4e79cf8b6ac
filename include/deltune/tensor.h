/* Tensor views: a pointer, a dtype, a shape and strides. A view owns nothing.
 *
 * Strides count elements. The last dimension always has stride 1; others may be larger (a slice of a
 * fused projection). Memory may be of the host or of a device: the execution context says which. */
#ifndef DELTUNE_TENSOR_H
#define DELTUNE_TENSOR_H

#include <deltune/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DT_MAX_RANK 4

typedef enum dt_dtype {
    DT_NONE = 0, /* "this optional tensor is absent" */
    DT_F32,
    DT_BF16,
    DT_F16,
    DT_F64,
    DT_I32,
    DT_I64,
    DT_U8
} dt_dtype;

typedef struct dt_tensor {
    void *data; /* NULL = absent */
    dt_dtype dtype;
    int32_t rank;
    int64_t shape[DT_MAX_RANK];  /* unused entries are 1 */
    int64_t stride[DT_MAX_RANK]; /* in elements; stride[rank-1] == 1 */
} dt_tensor;

/* Bytes of one element; 0 for DT_NONE. */
DT_API size_t dt_dtype_size(dt_dtype dtype);
/* "F32", "BF16", ... as safetensors spells them; "none". */
DT_API const char *dt_dtype_name(dt_dtype dtype);

/* Contiguous (row-major) views. */
DT_API dt_tensor dt_tensor_1d(void *data, dt_dtype dtype, int64_t n0);
DT_API dt_tensor dt_tensor_2d(void *data, dt_dtype dtype, int64_t n0, int64_t n1);
DT_API dt_tensor dt_tensor_3d(void *data, dt_dtype dtype, int64_t n0, int64_t n1, int64_t n2);
DT_API dt_tensor dt_tensor_4d(void *data, dt_dtype dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3);

/* A view with the same memory whose dimension `dim` is [begin, end). */
DT_API dt_tensor dt_tensor_slice(dt_tensor t, int dim, int64_t begin, int64_t end);
/* [.., n*m] seen as [.., n, m]: splits the last dimension; rank grows by one. */
DT_API dt_tensor dt_tensor_split_last(dt_tensor t, int64_t m);

DT_API int64_t dt_tensor_numel(const dt_tensor *t);
DT_API bool dt_tensor_is_contiguous(const dt_tensor *t);
static inline bool dt_tensor_present(const dt_tensor *t)
{
    return t->data != NULL;
}

/* bf16 <-> fp32. Rounding is to nearest even; NaN stays NaN (quiet). */
static inline float dt_bf16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v;
    v.u = (uint32_t)h << 16;
    return v.f;
}
static inline uint16_t dt_f32_to_bf16(float x)
{
    union {
        float f;
        uint32_t u;
    } v;
    v.f = x;
    if ((v.u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((v.u >> 16) | 0x40u);
    return (uint16_t)((v.u + 0x7fffu + ((v.u >> 16) & 1u)) >> 16);
}
/* IEEE half -> fp32 (exact). */
DT_API float dt_f16_to_f32(uint16_t h);

#ifdef __cplusplus
}
#endif
#endif
