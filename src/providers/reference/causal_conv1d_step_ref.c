/* One token of the causal convolution for each of n streams, reference. Contract: deltune/op/causal_conv1d.h. */
#include <deltune/op/causal_conv1d.h>

#include "providers/reference/reference.h"

static dt_status conv_step_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    const dt_causal_conv1d_step_args *a = args;
    int64_t W = a->weight.shape[1];
    for (int64_t n = 0; n < a->x.shape[0]; n++)
        for (int64_t c = 0; c < a->x.shape[1]; c++) {
            double p = dt_tensor_present(&a->bias) ? ref_load(&a->bias, c) : 0.0;
            for (int64_t j = 0; j < W; j++) {
                double x = j + 1 < W ? ref_load3(&a->state, n, c, j + 1) : ref_load2(&a->x, n, c);
                p += ref_load2(&a->weight, c, j) * x;
                ref_store3(&a->state, n, c, j, x);
            }
            ref_store2(&a->y, n, c, a->silu ? ref_silu(p) : p);
        }
    return DT_OK;
}

const dt_op_set dtp_ref_causal_conv1d_step = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_CAUSAL_CONV1D_STEP,
    .caps = DT_CAP_STATE | DT_CAP_DETERMINISTIC,
    .forward = conv_step_forward,
};
