#include "providers/reference/reference.h"
#include <deltune/op/rms_norm.h>

static double root_mean_square_inverse(const dt_tensor *x, int64_t t, int64_t h, double eps)
{
    double sum = 0;
    for (int64_t d = 0; d < x->shape[2]; d++)
        sum += ref_load3(x, t, h, d) * ref_load3(x, t, h, d);
    return 1 / sqrt(sum / (double)x->shape[2] + eps);
}

static double factor(const dt_rms_norm_args *a, int64_t d)
{
    return ref_load(&a->weight, d) + (a->zero_centered ? 1 : 0);
}

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    const dt_rms_norm_args *a = args;
    dt_tensor x = ref_heads(a->x), y = ref_heads(a->y);
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t h = 0; h < x.shape[1]; h++) {
            double r = root_mean_square_inverse(&x, t, h, a->eps);
            for (int64_t d = 0; d < x.shape[2]; d++)
                ref_store3(&y, t, h, d, ref_load3(&x, t, h, d) * r * factor(a, d));
        }
    ref_zero_rows(&a->y, a->T, a->y.shape[0]);
    return DT_OK;
}

/* n = x r;  dn = dy w;  dx = r (dn - n mean(dn n));  dw = sum dy n */
static void input_gradient(const dt_rms_norm_args *a)
{
    dt_tensor x = ref_heads(a->x), dy = ref_heads(a->dy), dx = ref_heads(a->dx);
    dt_tensor residual = ref_heads(a->residual_grad);
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t h = 0; h < x.shape[1]; h++) {
            double r = root_mean_square_inverse(&x, t, h, a->eps), mean = 0;
            for (int64_t d = 0; d < x.shape[2]; d++)
                mean += ref_load3(&dy, t, h, d) * factor(a, d) * ref_load3(&x, t, h, d) * r;
            mean /= (double)x.shape[2];
            for (int64_t d = 0; d < x.shape[2]; d++) {
                double n = ref_load3(&x, t, h, d) * r, dn = ref_load3(&dy, t, h, d) * factor(a, d);
                double through = dt_tensor_present(&a->residual_grad) ? ref_load3(&residual, t, h, d) : 0;
                ref_store3(&dx, t, h, d, through + r * (dn - n * mean));
            }
        }
    ref_zero_rows(&a->dx, a->T, a->dx.shape[0]);
}

static void weight_gradient(const dt_rms_norm_args *a)
{
    dt_tensor x = ref_heads(a->x), dy = ref_heads(a->dy);
    for (int64_t d = 0; d < x.shape[2]; d++) {
        double sum = 0;
        for (int64_t t = 0; t < a->T; t++)
            for (int64_t h = 0; h < x.shape[1]; h++)
                sum += ref_load3(&dy, t, h, d) * ref_load3(&x, t, h, d) * root_mean_square_inverse(&x, t, h, a->eps);
        ref_store(&a->dweight, d, ref_load(&a->dweight, d) + sum);
    }
}

static dt_status backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    const dt_rms_norm_args *a = args;
    if (dt_tensor_present(&a->dweight)) /* first: dx may overwrite dy */
        weight_gradient(a);
    if (dt_tensor_present(&a->dx))
        input_gradient(a);
    return DT_OK;
}

const dt_op_set dtp_ref_rms_norm = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_RMS_NORM,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    .forward = forward,
    .backward = backward,
};
