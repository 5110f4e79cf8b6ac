/* Decay and write strength of the gated delta rule, reference. Contract: dt_gdn_gates_args in deltune/op/gdn.h. */
#include <deltune/op/gdn.h>

#include "providers/reference/reference.h"

static double softplus(double x)
{
    return x > 20.0 ? x : log1p(exp(x));
}

static dt_status gates_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    const dt_gdn_gates_args *a = args;
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t h = 0; h < a->a.shape[1]; h++) {
            double x = ref_load2(&a->a, t, h) + ref_load(&a->dt_bias, h);
            double b = ref_load2(&a->b, t, h);
            ref_store2(&a->g, t, h, -exp(ref_load(&a->A_log, h)) * softplus(x));
            ref_store2(&a->beta, t, h, ref_sigmoid(b));
        }
    ref_zero_rows(&a->g, a->T, a->g.shape[0]);
    ref_zero_rows(&a->beta, a->T, a->beta.shape[0]);
    return DT_OK;
}

/*     x = a + dt_bias:  da = -exp(A_log) softplus'(x) dg;  ddt_bias = sum da;  dA_log = sum dg g
 *     db = dbeta beta (1 - beta)                                          (g and beta are computed again) */
static dt_status gates_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    const dt_gdn_gates_args *a = args;
    for (int64_t h = 0; h < a->a.shape[1]; h++) {
        double rate = exp(ref_load(&a->A_log, h)), dA_log = 0.0, ddt_bias = 0.0;
        for (int64_t t = 0; t < a->T; t++) {
            double x = ref_load2(&a->a, t, h) + ref_load(&a->dt_bias, h);
            double beta = ref_sigmoid(ref_load2(&a->b, t, h));
            double dg = ref_load2(&a->dg, t, h);
            double dbeta = ref_load2(&a->dbeta, t, h);
            double da = -rate * (x > 20.0 ? 1.0 : ref_sigmoid(x)) * dg;
            dA_log -= dg * rate * softplus(x);
            ddt_bias += da;
            ref_store2(&a->da, t, h, da);
            ref_store2(&a->db, t, h, dbeta * beta * (1.0 - beta));
        }
        if (dt_tensor_present(&a->dA_log))
            ref_add(&a->dA_log, h, dA_log);
        if (dt_tensor_present(&a->ddt_bias))
            ref_add(&a->ddt_bias, h, ddt_bias);
    }
    ref_zero_rows(&a->da, a->T, a->da.shape[0]);
    ref_zero_rows(&a->db, a->T, a->db.shape[0]);
    return DT_OK;
}

const dt_op_set dtp_ref_gdn_gates = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_GDN_GATES,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    .forward = gates_forward,
    .backward = gates_backward,
};
