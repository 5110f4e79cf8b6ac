#include "providers/reference/reference.h"
#include <deltune/op/activation.h>

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    const dt_gate_args *a = args;
    dt_tensor x = ref_heads(a->x), gate = ref_heads(a->gate), y = ref_heads(a->y);
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t h = 0; h < x.shape[1]; h++)
            for (int64_t d = 0; d < x.shape[2]; d++) {
                double g = ref_load3(&gate, t, h, d);
                ref_store3(&y, t, h, d, ref_load3(&x, t, h, d) * ref_sigmoid(g));
            }
    ref_zero_rows(&a->y, a->T, a->y.shape[0]);
    return DT_OK;
}

/* s' = s (1 - s) */
static dt_status backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    const dt_gate_args *a = args;
    dt_tensor x = ref_heads(a->x), gate = ref_heads(a->gate), dy = ref_heads(a->dy);
    dt_tensor dx = ref_heads(a->dx), dgate = ref_heads(a->dgate);
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t h = 0; h < x.shape[1]; h++)
            for (int64_t d = 0; d < x.shape[2]; d++) { /* all reads first: outputs may alias inputs */
                double g = ref_load3(&gate, t, h, d), s = ref_sigmoid(g);
                double value = ref_load3(&x, t, h, d), upstream = ref_load3(&dy, t, h, d);
                ref_store3(&dx, t, h, d, upstream * s);
                ref_store3(&dgate, t, h, d, upstream * value * s * (1 - s));
            }
    ref_zero_rows(&a->dx, a->T, a->dx.shape[0]);
    ref_zero_rows(&a->dgate, a->T, a->dgate.shape[0]);
    return DT_OK;
}

const dt_op_set dtp_ref_sigmoid_gate = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_SIGMOID_GATE,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    .forward = forward,
    .backward = backward,
};
