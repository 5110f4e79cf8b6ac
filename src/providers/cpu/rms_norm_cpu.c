#include "providers/cpu/common.h"
#include <deltune/op/rms_norm.h>

/* The weight gradient is summed over fixed blocks of rows, then over the blocks in order. */
enum { BLOCKS = 64 };

static int64_t dimension(const dt_rms_norm_args *a)
{
    return a->x.shape[a->x.rank - 1];
}

/* One spare cache line a block keeps neighbours from sharing one. */
static int64_t partial_pitch(int64_t D)
{
    return (D + 31) / 16 * 16;
}

static int verify(const dt_exec *exec, const void *args, char *why, size_t why_size)
{
    (void)exec;
    const dt_rms_norm_args *a = args;
    return dtp_is_f32(&a->x, "x", why, why_size) && dtp_is_f32(&a->y, "y", why, why_size) &&
           dtp_is_f32(&a->dy, "dy", why, why_size) && dtp_is_f32(&a->dx, "dx", why, why_size) &&
           dtp_is_f32(&a->residual_grad, "residual_grad", why, why_size);
}

static size_t workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)exec;
    return sizeof(float) * (size_t)partial_pitch(dimension(args)) * (backward ? 1 + BLOCKS : 1);
}

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)err;
    const dt_rms_norm_args *a = args;
    const dt_row_kernels *kernels = dtp_row_kernels();
    dt_tensor x = dtp_heads(a->x), y = dtp_heads(a->y);
    int64_t heads = x.shape[1], D = x.shape[2];
    float *weight = workspace;
    dtp_weight_f32(weight, &a->weight, D, a->zero_centered ? 1.0f : 0.0f);
#pragma omp parallel for num_threads(dtp_threads_for(exec, a->T *heads *D)) schedule(static)
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t h = 0; h < heads; h++)
            kernels->rms_norm(dtp_head_row(&y, t, h), dtp_head_row(&x, t, h), weight, a->eps, D);
    dtp_zero_rows(&a->y, a->T, a->y.shape[0]);
    return DT_OK;
}

static void block_backward(const dt_rms_norm_args *a, int64_t begin, int64_t end, const float *weight, float *dweight)
{
    const dt_row_kernels *kernels = dtp_row_kernels();
    dt_tensor x = dtp_heads(a->x), dy = dtp_heads(a->dy), dx = dtp_heads(a->dx);
    dt_tensor residual = dtp_heads(a->residual_grad);
    int64_t D = x.shape[2];
    if (dweight)
        memset(dweight, 0, (size_t)D * sizeof(float));
    for (int64_t t = begin; t < end; t++)
        for (int64_t h = 0; h < x.shape[1]; h++) {
            const float *through = dt_tensor_present(&a->residual_grad) ? dtp_head_row(&residual, t, h) : NULL;
            kernels->rms_norm_backward(dtp_head_row(&dx, t, h), dtp_head_row(&x, t, h), dtp_head_row(&dy, t, h), weight,
                                       through, dweight, a->eps, D);
        }
}

static dt_status backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)err;
    const dt_rms_norm_args *a = args;
    int64_t D = dimension(a), pitch = partial_pitch(D), block = (a->T + BLOCKS - 1) / BLOCKS;
    float *weight = workspace, *partial = weight + pitch;
    bool sum_weight = dt_tensor_present(&a->dweight);
    dtp_weight_f32(weight, &a->weight, D, a->zero_centered ? 1.0f : 0.0f);
    int64_t blocks = block ? (a->T + block - 1) / block : 0;
#pragma omp parallel for num_threads(dtp_threads_for(exec, dt_tensor_numel(&a->x))) schedule(static)
    for (int64_t i = 0; i < blocks; i++) {
        int64_t begin = i * block, end = begin + block < a->T ? begin + block : a->T;
        block_backward(a, begin, end, weight, sum_weight ? partial + i * pitch : NULL);
    }
    for (int64_t d = 0; sum_weight && d < D; d++) {
        double sum = ((float *)a->dweight.data)[d];
        for (int64_t i = 0; i < blocks; i++)
            sum += partial[i * pitch + d];
        ((float *)a->dweight.data)[d] = (float)sum;
    }
    dtp_zero_rows(&a->dx, a->T, a->dx.shape[0]);
    return DT_OK;
}

const dt_op_set dtp_cpu_rms_norm = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_RMS_NORM,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    .verify = verify,
    .workspace_bytes = workspace_bytes,
    .forward = forward,
    .backward = backward,
};
