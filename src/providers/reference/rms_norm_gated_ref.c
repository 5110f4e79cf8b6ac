/* Gated RMS normalisation, reference. Contract: deltune/op/rms_norm_gated.h. */
#include <deltune/op/rms_norm_gated.h>

#include "providers/reference/reference.h"

static double inverse_rms(const dt_tensor *x, int64_t t, int64_t h, double eps)
{
    double sum = 0.0;
    for (int64_t i = 0; i < x->shape[2]; i++)
        sum += ref_load3(x, t, h, i) * ref_load3(x, t, h, i);
    return 1.0 / sqrt(sum / (double)x->shape[2] + eps);
}

static dt_status gated_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    const dt_rms_norm_gated_args *a = args;
    dt_tensor x = ref_heads(a->x), z = ref_heads(a->z), y = ref_heads(a->y);
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t h = 0; h < x.shape[1]; h++) {
            double r = inverse_rms(&x, t, h, (double)a->eps);
            for (int64_t i = 0; i < x.shape[2]; i++) {
                double n = ref_load3(&x, t, h, i) * r * ref_load(&a->weight, i);
                ref_store3(&y, t, h, i, n * ref_silu(ref_load3(&z, t, h, i)));
            }
        }
    ref_zero_rows(&a->y, a->T, a->y.shape[0]);
    return DT_OK;
}

/* One row: dn = dy silu(z); dx = r (w dn - xh mean(xh w dn)); dz = dy xh w silu'(z); dw += dn xh, with xh = x r. */
static void backward_row(const dt_rms_norm_gated_args *a, int64_t t, int64_t h, double *dw)
{
    dt_tensor x = ref_heads(a->x), z = ref_heads(a->z), dy = ref_heads(a->dy), dx = ref_heads(a->dx),
              dz = ref_heads(a->dz);
    int64_t D = x.shape[2];
    double r = inverse_rms(&x, t, h, (double)a->eps), mean = 0.0;
    for (int64_t i = 0; i < D; i++) {
        double xh = r * ref_load3(&x, t, h, i), dn = ref_load3(&dy, t, h, i) * ref_silu(ref_load3(&z, t, h, i));
        mean += xh * ref_load(&a->weight, i) * dn / (double)D;
        dw[i] += dn * xh;
    }
    for (int64_t i = 0; i < D; i++) {
        double xh = r * ref_load3(&x, t, h, i), w = ref_load(&a->weight, i);
        double gate = ref_load3(&z, t, h, i), d = ref_load3(&dy, t, h, i); /* read before dx, which may be dy */
        ref_store3(&dx, t, h, i, r * (w * d * ref_silu(gate) - xh * mean));
        ref_store3(&dz, t, h, i, d * xh * w * ref_silu_derivative(gate));
    }
}

static dt_status gated_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)err;
    const dt_rms_norm_gated_args *a = args;
    int64_t heads = ref_heads(a->x).shape[1], D = ref_heads(a->x).shape[2];
    double *dw = workspace;
    for (int64_t i = 0; i < D; i++)
        dw[i] = 0.0;
    for (int64_t row = 0; row < a->T * heads; row++)
        backward_row(a, row / heads, row % heads, dw);
    for (int64_t i = 0; i < D && dt_tensor_present(&a->dweight); i++)
        ref_add(&a->dweight, i, dw[i]);
    ref_zero_rows(&a->dx, a->T, a->dx.shape[0]);
    ref_zero_rows(&a->dz, a->T, a->dz.shape[0]);
    return DT_OK;
}

static size_t gated_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)exec;
    const dt_rms_norm_gated_args *a = args;
    return backward ? (size_t)a->weight.shape[0] * sizeof(double) : 0;
}

const dt_op_set dtp_ref_rms_norm_gated = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_RMS_NORM_GATED,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    .workspace_bytes = gated_workspace_bytes,
    .forward = gated_forward,
    .backward = gated_backward,
};
