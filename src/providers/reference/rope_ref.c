#include "providers/reference/reference.h"
#include <deltune/op/rope.h>

/* direction +1 rotates (forward), -1 rotates back (backward). `out` may be `in`. */
static void rotate(const dt_rope_args *a, dt_tensor in, dt_tensor out, double direction)
{
    const int32_t *positions = a->positions.data;
    int64_t half = a->rotary_dim / 2;
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t h = 0; h < in.shape[1]; h++) {
            for (int64_t i = 0; i < half; i++) {
                double f = positions[t] * pow(a->theta, -2.0 * (double)i / a->rotary_dim);
                double c = cos(f), s = direction * sin(f);
                double first = ref_load3(&in, t, h, i), second = ref_load3(&in, t, h, i + half);
                ref_store3(&out, t, h, i, first * c - second * s);
                ref_store3(&out, t, h, i + half, second * c + first * s);
            }
            for (int64_t i = 2 * half; i < in.shape[2]; i++)
                ref_store3(&out, t, h, i, ref_load3(&in, t, h, i));
        }
    ref_zero_rows(&out, a->T, out.shape[0]);
}

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    const dt_rope_args *a = args;
    rotate(a, a->x, a->y, 1);
    return DT_OK;
}

static dt_status backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    const dt_rope_args *a = args;
    rotate(a, a->dy, a->dx, -1);
    return DT_OK;
}

const dt_op_set dtp_ref_rope = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_ROPE,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    .forward = forward,
    .backward = backward,
};
