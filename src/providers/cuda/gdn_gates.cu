/* DT_OP_GDN_GATES on CUDA: launches its kernels. */
#include <deltune/op/gdn.h>

#include "providers/cuda/gdn_gates.cuh"

static gdn_gates_params gdn_gates_make_params(const dt_gdn_gates_args *a)
{
    gdn_gates_params p;
    memset(&p, 0, sizeof p);
    p.a = rows_view_of(&a->a), p.b = rows_view_of(&a->b), p.A_log = rows_view_of(&a->A_log),
    p.dt_bias = rows_view_of(&a->dt_bias);
    p.g = rows_view_of(&a->g), p.beta = rows_view_of(&a->beta), p.dg = rows_view_of(&a->dg),
    p.dbeta = rows_view_of(&a->dbeta);
    p.da = rows_view_of(&a->da), p.db = rows_view_of(&a->db);
    p.T = a->T, p.T_cap = a->a.shape[0];
    p.heads = (int32_t)a->a.shape[1];
    return p;
}
static size_t gdn_gates_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    const dt_gdn_gates_args *a = (const dt_gdn_gates_args *)args;
    (void)exec;
    return backward ? (size_t)(2 * rows_runs(a->a.shape[0]) * a->a.shape[1]) * sizeof(float) : 0;
}
static dt_status gdn_gates_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    gdn_gates_params p = gdn_gates_make_params((const dt_gdn_gates_args *)args);
    (void)saved, (void)workspace;
    return DT_LAUNCH(err, exec, dtp_blocks(p.T_cap, GDN_GATES_ROWS) * dtp_blocks(p.heads, GDN_GATES_COLUMNS),
                     ROWS_THREADS, 0, gdn_gates_forward_kernel, p);
}
static dt_status gdn_gates_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    const dt_gdn_gates_args *a = (const dt_gdn_gates_args *)args;
    gdn_gates_params p = gdn_gates_make_params(a);
    (void)saved;
    p.partial = a->dA_log.data || a->ddt_bias.data ? (float *)workspace : NULL;
    p.run = rows_run_length(p.T_cap);
    int64_t runs = p.run ? dtp_blocks(p.T_cap, p.run) : 0;
    dt_status st = DT_LAUNCH(err, exec, runs * dtp_blocks(p.heads, GDN_GATES_COLUMNS), ROWS_THREADS,
                             2 * ROWS_THREADS * (int)sizeof(float), gdn_gates_backward_kernel, p);
    if (st == DT_OK && a->dA_log.data)
        st = dtp_cuda_add_runs(exec, (float *)a->dA_log.data, p.partial, runs, p.heads, 2 * p.heads, err);
    if (st == DT_OK && a->ddt_bias.data)
        st = dtp_cuda_add_runs(exec, (float *)a->ddt_bias.data, p.partial + p.heads, runs, p.heads, 2 * p.heads, err);
    return st;
}

extern "C" const dt_op_set dtp_cuda_gdn_gates = {sizeof(dt_op_set),
                                                 DT_OP_GDN_GATES,
                                                 DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
                                                 NULL,
                                                 NULL,
                                                 gdn_gates_workspace_bytes,
                                                 gdn_gates_forward,
                                                 gdn_gates_backward,
                                                 NULL};
