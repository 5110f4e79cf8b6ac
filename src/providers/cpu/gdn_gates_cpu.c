/* Decay and write strength of the gated delta rule. Contract: dt_gdn_gates_args in deltune/op/gdn.h. */
#include <deltune/op/gdn.h>

#include "providers/cpu/common.h"
#include "providers/cpu/mixer.h"

#include <math.h>

/* Parameter gradients are summed over fixed blocks of rows, then over the blocks in order. */
enum { BLOCKS = 64 };

/* Workspace: rate [Hv], bias [Hv], then per block dA_log and ddt_bias. */
static size_t gates_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)exec;
    const dt_gdn_gates_args *a = args;
    return (size_t)(a->a.shape[1] * 2 * (1 + (backward ? BLOCKS : 0))) * sizeof(float);
}

static const float *load_parameters(const dt_gdn_gates_args *a, float *workspace)
{
    int64_t heads = a->a.shape[1];
    dtp_weight_f32(workspace, &a->A_log, heads, 0.0f);
    for (int64_t h = 0; h < heads; h++)
        workspace[h] = expf(workspace[h]);
    dtp_weight_f32(workspace + heads, &a->dt_bias, heads, 0.0f);
    return workspace;
}

static dt_status gates_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)err;
    const dt_gdn_gates_args *a = args;
    const dt_mixer_kernels *kernels = dtp_mixer_kernels();
    int64_t heads = a->a.shape[1];
    const float *rate = load_parameters(a, workspace);
#pragma omp parallel for num_threads(dtp_threads_for(exec, a->T *heads))
    for (int64_t t = 0; t < a->T; t++)
        kernels->gates(dtp_row(&a->g, t), dtp_row(&a->beta, t), dtp_row(&a->a, t), dtp_row(&a->b, t), rate,
                       rate + heads, heads);
    dtp_zero_rows(&a->g, a->T, a->g.shape[0]);
    dtp_zero_rows(&a->beta, a->T, a->beta.shape[0]);
    return DT_OK;
}

static void add_partials(const dt_tensor *gradient, const float *partial, int64_t pitch, int64_t blocks)
{
    float *d = gradient->data;
    for (int64_t h = 0; d && h < gradient->shape[0]; h++) {
        double sum = d[h];
        for (int64_t i = 0; i < blocks; i++)
            sum += (double)partial[i * pitch + h];
        d[h] = (float)sum;
    }
}

static dt_status gates_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)err;
    const dt_gdn_gates_args *a = args;
    const dt_mixer_kernels *kernels = dtp_mixer_kernels();
    int64_t heads = a->a.shape[1], block = (a->T + BLOCKS - 1) / BLOCKS,
            blocks = block ? (a->T + block - 1) / block : 0;
    const float *rate = load_parameters(a, workspace);
    float *partial = (float *)workspace + 2 * heads;
#pragma omp parallel for num_threads(dtp_threads_for(exec, a->T *heads))
    for (int64_t i = 0; i < blocks; i++) {
        float *dA_log = partial + i * 2 * heads, *dbias = dA_log + heads;
        memset(dA_log, 0, (size_t)heads * 2 * sizeof(float));
        for (int64_t t = i * block; t < (i + 1) * block && t < a->T; t++)
            kernels->gates_backward(dtp_row(&a->da, t), dtp_row(&a->db, t), dtp_row(&a->a, t), dtp_row(&a->b, t), rate,
                                    rate + heads, dtp_row(&a->dg, t), dtp_row(&a->dbeta, t), dA_log, dbias, heads);
    }
    add_partials(&a->dA_log, partial, 2 * heads, blocks);
    add_partials(&a->ddt_bias, partial + heads, 2 * heads, blocks);
    dtp_zero_rows(&a->da, a->T, a->da.shape[0]);
    dtp_zero_rows(&a->db, a->T, a->db.shape[0]);
    return DT_OK;
}

static int gates_verify(const dt_exec *exec, const void *args, char *why, size_t why_size)
{
    (void)exec;
    const dt_gdn_gates_args *a = args;
    return dtp_is_f32(&a->a, "a", why, why_size);
}

const dt_op_set dtp_cpu_gdn_gates = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_GDN_GATES,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    .verify = gates_verify,
    .workspace_bytes = gates_workspace_bytes,
    .forward = gates_forward,
    .backward = gates_backward,
};
