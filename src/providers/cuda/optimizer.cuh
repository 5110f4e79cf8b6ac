/* AdamW and the gradient norm over one flat buffer of f32. VECTORS: pointers are 16-byte aligned. */
#ifndef DT_CUDA_OPTIMIZER_CUH
#define DT_CUDA_OPTIMIZER_CUH
#include <deltune/op/optimizer.h>

#include "providers/cuda/device.cuh"

enum {
    OPTIMIZER_THREADS = 256,
    OPTIMIZER_BLOCKS = 1024, /* at most; each has a contiguous share */
    ADAMW_VECTORS = 2,       /* of four elements, that a thread holds at a time */
    GRAD_NORM_VECTORS = 4
};

/* The segment that holds element i: the last that starts at or before it and is not empty behind it. */
DT_DEVICE int64_t optimizer_segment_of(const dt_param_segment *segments, int64_t n, int64_t i)
{
    int64_t low = 0, high = n; /* segments[low].offset <= i < segments[high].offset */
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (segments[middle].offset <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}
template <bool VECTORS> DT_DEVICE float4 optimizer_load4(const float *x, int64_t i, int64_t n)
{
    if (VECTORS && i + 4 <= n)
        return *(const float4 *)(x + i);
    return make_float4(i < n ? x[i] : 0.0f, i + 1 < n ? x[i + 1] : 0.0f, i + 2 < n ? x[i + 2] : 0.0f,
                       i + 3 < n ? x[i + 3] : 0.0f);
}
template <bool VECTORS> DT_DEVICE void optimizer_store4(float *x, int64_t i, int64_t n, float4 v)
{
    if (VECTORS && i + 4 <= n) {
        *(float4 *)(x + i) = v;
        return;
    }
    if (i < n)
        x[i] = v.x;
    if (i + 1 < n)
        x[i + 1] = v.y;
    if (i + 2 < n)
        x[i + 2] = v.z;
    if (i + 3 < n)
        x[i + 3] = v.w;
}

/* ---------------------------------------------------------------- adamw */

struct adamw_params {
    float *param, *m, *v;
    const float *grad;
    const dt_param_segment *segments;   /* device */
    int64_t n, n_segments, step, share; /* share: elements of a block, a multiple of 4 */
    float lr, beta1, beta2, eps, grad_scale;
    double log_beta1, log_beta2;
    const dt_step_values *values;    /* device, or NULL: the fields above */
    const dt_grad_norm_result *norm; /* device, or NULL */
};
struct adamw_scalars { /* of the step, computed by one thread of a block */
    double lr;
    float rate, root, scale; /* lr / (1 - b1^t), 1 / sqrt(1 - b2^t), factor of gradients */
    int64_t segment;         /* of the block's first element */
};
DT_DEVICE void adamw_prepare(adamw_scalars &s, const adamw_params &p)
{
    double step = (double)(p.values ? (int64_t)p.values->update : p.step);
    s.lr = (double)(p.values ? p.values->lr : p.lr);
    s.rate = (float)(s.lr / -expm1(step * p.log_beta1));
    s.root = (float)(1.0 / sqrt(-expm1(step * p.log_beta2)));
    s.scale = p.grad_scale;
    if (p.norm) {
        double limit = (double)p.values->max_grad_norm, scale = limit / (sqrt(p.norm->sum_of_squares) + 1e-6);
        s.scale = limit > 0.0 && scale < 1.0 ? (float)scale : 1.0f;
    }
    s.segment = optimizer_segment_of(p.segments, p.n_segments, (int64_t)blockIdx.x * p.share);
}
/* A segment on the way through the elements. */
struct adamw_walk {
    int64_t segment, end;
    float keep; /* 1 - lr * weight_decay */
};
DT_DEVICE void adamw_enter(adamw_walk &w, const adamw_params &p, const adamw_scalars &s, int64_t segment)
{
    w.segment = segment;
    w.end = segment + 1 < p.n_segments ? p.segments[segment + 1].offset : p.n;
    w.keep = (float)(1.0 - s.lr * (double)p.segments[segment].weight_decay);
}
DT_DEVICE void adamw_update(float &param, float &m, float &v, float grad, const adamw_params &p, const adamw_scalars &s,
                            adamw_walk &w, int64_t i)
{
    while (i >= w.end && w.end < p.n)
        adamw_enter(w, p, s, w.segment + 1);
    float g = grad * s.scale, other1 = (float)(1.0 - (double)p.beta1), other2 = (float)(1.0 - (double)p.beta2);
    m = p.beta1 * m + other1 * g;
    v = p.beta2 * v + other2 * g * g;
    param = param * w.keep - s.rate * m / (sqrtf(v) * s.root + p.eps);
}
template <bool VECTORS> DT_KERNEL(OPTIMIZER_THREADS, 3) adamw_kernel(const adamw_params p)
{
    enum { STEP = OPTIMIZER_THREADS * 4 };
    DT_SHARED(shared);
    int64_t begin = (int64_t)blockIdx.x * p.share, end = begin + p.share < p.n ? begin + p.share : p.n;
    if (p.norm && p.norm->first_nonfinite >= 0)
        return;
    if (threadIdx.x == 0)
        adamw_prepare(*(adamw_scalars *)shared, p);
    block_sync();
    adamw_scalars s = *(adamw_scalars *)shared;
    adamw_walk walk;
    adamw_enter(walk, p, s, s.segment);
    for (int64_t first = begin + (int)threadIdx.x * 4; first < end; first += ADAMW_VECTORS * STEP) {
        float4 param[ADAMW_VECTORS], grad[ADAMW_VECTORS], m[ADAMW_VECTORS], v[ADAMW_VECTORS];
        DT_UNROLL
        for (int k = 0; k < ADAMW_VECTORS; k++) {
            param[k] = optimizer_load4<VECTORS>(p.param, first + k * STEP, end);
            grad[k] = optimizer_load4<VECTORS>(p.grad, first + k * STEP, end);
            m[k] = optimizer_load4<VECTORS>(p.m, first + k * STEP, end);
            v[k] = optimizer_load4<VECTORS>(p.v, first + k * STEP, end);
        }
        DT_UNROLL
        for (int k = 0; k < ADAMW_VECTORS; k++) {
            int64_t i = first + k * STEP;
            adamw_update(param[k].x, m[k].x, v[k].x, grad[k].x, p, s, walk, i);
            adamw_update(param[k].y, m[k].y, v[k].y, grad[k].y, p, s, walk, i + 1);
            adamw_update(param[k].z, m[k].z, v[k].z, grad[k].z, p, s, walk, i + 2);
            adamw_update(param[k].w, m[k].w, v[k].w, grad[k].w, p, s, walk, i + 3);
            optimizer_store4<VECTORS>(p.param, i, end, param[k]);
            optimizer_store4<VECTORS>(p.m, i, end, m[k]);
            optimizer_store4<VECTORS>(p.v, i, end, v[k]);
        }
    }
}

/* ---------------------------------------------------------------- gradient norm */

struct grad_norm_partial {
    double sum;
    int64_t first; /* element that is not finite; n when all are */
};
struct grad_norm_params {
    const float *grad;
    const dt_param_segment *segments; /* device */
    int64_t n, n_segments, share;     /* elements of a block, a multiple of 4 */
    int32_t blocks;
    grad_norm_partial *partial;
    dt_grad_norm_result *result; /* device */
};
/* This block's sum of `x` and the smallest of `first`, in thread 0. */
DT_DEVICE grad_norm_partial grad_norm_combine(grad_norm_partial mine, grad_norm_partial *shared)
{
    shared[threadIdx.x] = mine;
    block_sync();
    for (int n = OPTIMIZER_THREADS / 2; n; n /= 2) {
        if ((int)threadIdx.x < n) {
            grad_norm_partial other = shared[threadIdx.x + n];
            mine.sum += other.sum;
            mine.first = other.first < mine.first ? other.first : mine.first;
            shared[threadIdx.x] = mine;
        }
        block_sync();
    }
    return mine;
}
DT_DEVICE void grad_norm_add(double &sum, int64_t &first, float x, int64_t i)
{
    sum += (double)x * (double)x;
    if ((float_bits(x) & 0x7f800000u) == 0x7f800000u && i < first)
        first = i;
}
template <bool VECTORS> DT_KERNEL(OPTIMIZER_THREADS, 1) grad_norm_sum_kernel(const grad_norm_params p)
{
    DT_SHARED(shared);
    int64_t begin = (int64_t)blockIdx.x * p.share, end = begin + p.share < p.n ? begin + p.share : p.n;
    double sum[4] = {0};
    grad_norm_partial mine = {0.0, p.n};
    for (int64_t base = begin + (int)threadIdx.x * 4; base < end; base += OPTIMIZER_THREADS * 4 * GRAD_NORM_VECTORS) {
        float4 x[GRAD_NORM_VECTORS];
        DT_UNROLL
        for (int k = 0; k < GRAD_NORM_VECTORS; k++)
            x[k] = optimizer_load4<VECTORS>(p.grad, base + k * OPTIMIZER_THREADS * 4, end);
        DT_UNROLL
        for (int k = 0; k < GRAD_NORM_VECTORS; k++) {
            int64_t i = base + k * OPTIMIZER_THREADS * 4;
            grad_norm_add(sum[0], mine.first, x[k].x, i);
            grad_norm_add(sum[1], mine.first, x[k].y, i + 1);
            grad_norm_add(sum[2], mine.first, x[k].z, i + 2);
            grad_norm_add(sum[3], mine.first, x[k].w, i + 3);
        }
    }
    mine.sum = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    mine = grad_norm_combine(mine, (grad_norm_partial *)shared);
    if (threadIdx.x == 0)
        p.partial[blockIdx.x] = mine;
}
DT_KERNEL(OPTIMIZER_THREADS, 1) grad_norm_finish_kernel(const grad_norm_params p)
{
    DT_SHARED(shared);
    grad_norm_partial mine = {0.0, p.n};
    for (int i = (int)threadIdx.x; i < p.blocks; i += OPTIMIZER_THREADS) {
        grad_norm_partial other = p.partial[i];
        mine.sum += other.sum;
        mine.first = other.first < mine.first ? other.first : mine.first;
    }
    mine = grad_norm_combine(mine, (grad_norm_partial *)shared);
    if (threadIdx.x != 0)
        return;
    p.result->sum_of_squares = mine.sum;
    p.result->first_nonfinite = mine.first < p.n ? optimizer_segment_of(p.segments, p.n_segments, mine.first) : -1;
}
#endif
