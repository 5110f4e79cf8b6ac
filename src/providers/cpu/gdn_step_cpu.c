/* One token of the gated delta rule for each of n streams (decode). Contract: dt_gdn_step_args in deltune/op/gdn.h. */
#include "providers/cpu/common.h"
#include "providers/cpu/gdn_cpu.h"

#include <math.h>
#include <omp.h>

/* Scratch of one thread: q and k [K] as the recurrence uses them. */
static size_t step_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)backward;
    const dt_gdn_step_args *a = args;
    return (size_t)exec->threads * 2 * (size_t)a->q.shape[2] * sizeof(float);
}

static void load_row(const dt_gdn_step_args *a, float *out, const float *row, float scale)
{
    int64_t K = a->q.shape[2];
    if (a->qk_l2norm)
        scale /= sqrtf(dtp_row_kernels()->dot(row, row, K) + 1e-6f);
    for (int64_t i = 0; i < K; i++)
        out[i] = scale * row[i];
}

static dt_status step_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)err;
    const dt_gdn_step_args *a = args;
    int64_t K = a->q.shape[2], V = a->v.shape[2], heads = a->v.shape[1], group = heads / a->q.shape[1];
    int64_t items = a->q.shape[0] * heads;
    const dt_gdn_kernels *kernels = dtp_gdn_kernels();
#pragma omp parallel for num_threads(dtp_threads_for(exec, items *K *V))
    for (int64_t item = 0; item < items; item++) {
        int64_t n = item / heads, h = item % heads;
        float *q = (float *)workspace + omp_get_thread_num() * 2 * K, *k = q + K;
        load_row(a, q, dtp_head_row(&a->q, n, h / group), a->scale);
        load_row(a, k, dtp_head_row(&a->k, n, h / group), 1.0f);
        float decay = expf(dtp_row(&a->g, n)[h]), beta = dtp_row(&a->beta, n)[h];
        kernels->step(dtp_head_row(&a->o, n, h), dtp_head_row(&a->state, n, h), a->state.stride[2], q, k,
                      dtp_head_row(&a->v, n, h), decay, beta, K, V);
    }
    return DT_OK;
}

static int step_verify(const dt_exec *exec, const void *args, char *why, size_t why_size)
{
    (void)exec;
    const dt_gdn_step_args *a = args;
    return dtp_is_f32(&a->q, "q", why, why_size);
}

const dt_op_set dtp_cpu_gdn_step = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_GDN_STEP,
    .caps = DT_CAP_STATE | DT_CAP_GVA | DT_CAP_DETERMINISTIC,
    .verify = step_verify,
    .workspace_bytes = step_workspace_bytes,
    .forward = step_forward,
};
