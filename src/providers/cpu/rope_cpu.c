#include "providers/cpu/common.h"
#include <deltune/op/rope.h>
#include <math.h>

static int verify(const dt_exec *exec, const void *args, char *why, size_t why_size)
{
    (void)exec;
    const dt_rope_args *a = args;
    return dtp_is_f32(&a->x, "x", why, why_size) && dtp_is_f32(&a->y, "y", why, why_size) &&
           dtp_is_f32(&a->dy, "dy", why, why_size) && dtp_is_f32(&a->dx, "dx", why, why_size);
}

/* The frequencies in double, then per row the cosines and the sines. */
static size_t workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)exec, (void)backward;
    const dt_rope_args *a = args;
    return (size_t)(a->rotary_dim / 2) * (sizeof(double) + 2 * sizeof(float) * (size_t)a->positions.shape[0]);
}

/* direction +1 rotates (forward), -1 rotates back (backward). `out` may be `in`.
 * Angles are formed in double: at position 100,000 an fp32 angle is already wrong by 0.004. */
static void rotate(const dt_exec *exec, const dt_rope_args *a, const dt_tensor *in, const dt_tensor *out,
                   double direction, void *workspace)
{
    const dt_row_kernels *kernels = dtp_row_kernels();
    const int32_t *positions = a->positions.data;
    int64_t half = a->rotary_dim / 2, heads = in->shape[1], rest = in->shape[2] - 2 * half;
    double *frequency = workspace;
    float *table = (float *)(frequency + half);
    for (int64_t i = 0; i < half; i++)
        frequency[i] = pow(a->theta, -2.0 * (double)i / a->rotary_dim);
#pragma omp parallel for num_threads(dtp_threads_for(exec, a->T *heads * in->shape[2])) schedule(static)
    for (int64_t t = 0; t < a->T; t++) {
        float *cosine = table + 2 * half * t, *sine = cosine + half;
        for (int64_t i = 0; i < half; i++) {
            double angle = positions[t] * frequency[i];
            cosine[i] = (float)cos(angle);
            sine[i] = (float)(direction * sin(angle));
        }
        for (int64_t h = 0; h < heads; h++) {
            const float *from = dtp_head_row(in, t, h);
            float *to = dtp_head_row(out, t, h);
            kernels->rotate(to, to + half, from, from + half, cosine, sine, half);
            if (to != from)
                memcpy(to + 2 * half, from + 2 * half, (size_t)rest * sizeof(float));
        }
    }
    dtp_zero_rows(out, a->T, out->shape[0]);
}

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)err;
    const dt_rope_args *a = args;
    rotate(exec, a, &a->x, &a->y, 1, workspace);
    return DT_OK;
}

static dt_status backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)err;
    const dt_rope_args *a = args;
    rotate(exec, a, &a->dy, &a->dx, -1, workspace);
    return DT_OK;
}

const dt_op_set dtp_cpu_rope = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_ROPE,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    .verify = verify,
    .workspace_bytes = workspace_bytes,
    .forward = forward,
    .backward = backward,
};
