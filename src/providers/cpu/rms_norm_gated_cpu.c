/* Gated RMS normalisation per head. Contract: deltune/op/rms_norm_gated.h. */
#include <deltune/op/rms_norm_gated.h>

#include "providers/cpu/common.h"
#include "providers/cpu/mixer.h"

/* The weight gradient is summed over fixed blocks of rows, then over the blocks in order. */
enum { BLOCKS = 64 };

/* One spare cache line a block keeps neighbours from sharing one. */
static int64_t pitch_of(const dt_rms_norm_gated_args *a)
{
    return (a->weight.shape[0] + 31) / 16 * 16;
}

static size_t gated_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)exec;
    return (size_t)pitch_of(args) * (backward ? 1 + BLOCKS : 1) * sizeof(float);
}

static dt_status gated_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)err;
    const dt_rms_norm_gated_args *a = args;
    const dt_mixer_kernels *kernels = dtp_mixer_kernels();
    dt_tensor x = dtp_heads(a->x), z = dtp_heads(a->z), y = dtp_heads(a->y);
    int64_t heads = x.shape[1], D = x.shape[2];
    float *weight = workspace;
    dtp_weight_f32(weight, &a->weight, D, 0.0f);
#pragma omp parallel for num_threads(dtp_threads_for(exec, a->T *heads *D))
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t h = 0; h < heads; h++)
            kernels->gated_norm(dtp_head_row(&y, t, h), dtp_head_row(&x, t, h), dtp_head_row(&z, t, h), weight, a->eps,
                                D);
    dtp_zero_rows(&a->y, a->T, a->y.shape[0]);
    return DT_OK;
}

static void backward_block(const dt_rms_norm_gated_args *a, int64_t begin, int64_t end, const float *weight, float *dw)
{
    const dt_mixer_kernels *kernels = dtp_mixer_kernels();
    dt_tensor x = dtp_heads(a->x), z = dtp_heads(a->z), dy = dtp_heads(a->dy), dx = dtp_heads(a->dx),
              dz = dtp_heads(a->dz);
    int64_t D = x.shape[2];
    if (dw)
        memset(dw, 0, (size_t)D * sizeof(float));
    for (int64_t t = begin; t < end; t++)
        for (int64_t h = 0; h < x.shape[1]; h++)
            kernels->gated_norm_backward(dtp_head_row(&dx, t, h), dtp_head_row(&dz, t, h), dtp_head_row(&x, t, h),
                                         dtp_head_row(&z, t, h), dtp_head_row(&dy, t, h), weight, dw, a->eps, D);
}

static dt_status gated_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)err;
    const dt_rms_norm_gated_args *a = args;
    int64_t D = a->weight.shape[0], pitch = pitch_of(a), block = (a->T + BLOCKS - 1) / BLOCKS;
    int64_t blocks = block ? (a->T + block - 1) / block : 0;
    float *weight = workspace, *partial = weight + pitch, *dweight = a->dweight.data;
    dtp_weight_f32(weight, &a->weight, D, 0.0f);
#pragma omp parallel for num_threads(dtp_threads_for(exec, dt_tensor_numel(&a->x)))
    for (int64_t i = 0; i < blocks; i++) {
        int64_t begin = i * block, end = begin + block < a->T ? begin + block : a->T;
        backward_block(a, begin, end, weight, dweight ? partial + i * pitch : NULL);
    }
    for (int64_t d = 0; dweight && d < D; d++) {
        double sum = dweight[d];
        for (int64_t i = 0; i < blocks; i++)
            sum += (double)partial[i * pitch + d];
        dweight[d] = (float)sum;
    }
    dtp_zero_rows(&a->dx, a->T, a->dx.shape[0]);
    dtp_zero_rows(&a->dz, a->T, a->dz.shape[0]);
    return DT_OK;
}

static int gated_verify(const dt_exec *exec, const void *args, char *why, size_t why_size)
{
    (void)exec;
    const dt_rms_norm_gated_args *a = args;
    return dtp_is_f32(&a->x, "x", why, why_size);
}

const dt_op_set dtp_cpu_rms_norm_gated = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_RMS_NORM_GATED,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    .verify = gated_verify,
    .workspace_bytes = gated_workspace_bytes,
    .forward = gated_forward,
    .backward = gated_backward,
};
