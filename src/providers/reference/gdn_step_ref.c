/* One token of the gated delta rule for each of n streams, reference. Contract: dt_gdn_step_args in deltune/op/gdn.h.
 */
#include <deltune/op/gdn.h>

#include "providers/reference/reference.h"

#include <omp.h>

static const double norm_eps = 1e-6;

/* Scratch of one thread: q, k [K] normalised, then u [V], in doubles. */
static size_t step_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)backward;
    const dt_gdn_step_args *a = args;
    return (size_t)exec->threads * (size_t)(2 * a->q.shape[2] + a->v.shape[2]) * sizeof(double);
}

static void load_row(const dt_gdn_step_args *a, const dt_tensor *x, int64_t n, int64_t head, double *row)
{
    int64_t K = x->shape[2];
    double sum = norm_eps;
    for (int64_t i = 0; i < K; i++) {
        row[i] = ref_load3(x, n, head, i);
        sum += row[i] * row[i];
    }
    for (int64_t i = 0; i < K && a->qk_l2norm; i++)
        row[i] /= sqrt(sum);
}

static void step_head(const dt_gdn_step_args *a, int64_t n, int64_t head, double *q, double *k, double *u)
{
    int64_t K = a->q.shape[2], V = a->v.shape[2], group = a->v.shape[1] / a->q.shape[1];
    double decay = exp(ref_load2(&a->g, n, head));
    double beta = ref_load2(&a->beta, n, head);

    load_row(a, &a->q, n, head / group, q);
    load_row(a, &a->k, n, head / group, k);
    for (int64_t j = 0; j < V; j++) {
        double read = 0.0, o = 0.0;
        for (int64_t i = 0; i < K; i++)
            read += decay * ref_load(&a->state, ref_at4(&a->state, n, head, i, j)) * k[i];
        u[j] = beta * (ref_load3(&a->v, n, head, j) - read);
        for (int64_t i = 0; i < K; i++) {
            int64_t at = ref_at4(&a->state, n, head, i, j);
            double updated = decay * ref_load(&a->state, at) + k[i] * u[j];
            o += updated * q[i];
            ref_store(&a->state, at, updated);
        }
        ref_store3(&a->o, n, head, j, a->scale * o);
    }
}

static dt_status step_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)saved;
    (void)err;
    const dt_gdn_step_args *a = args;
    int64_t K = a->q.shape[2], V = a->v.shape[2], heads = a->v.shape[1], items = a->q.shape[0] * heads;
#pragma omp parallel for num_threads(exec->threads)
    for (int64_t item = 0; item < items; item++) {
        double *q = (double *)workspace + omp_get_thread_num() * (2 * K + V);
        step_head(a, item / heads, item % heads, q, q + K, q + 2 * K);
    }
    return DT_OK;
}

const dt_op_set dtp_ref_gdn_step = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_GDN_STEP,
    .caps = DT_CAP_STATE | DT_CAP_GVA | DT_CAP_DETERMINISTIC,
    .workspace_bytes = step_workspace_bytes,
    .forward = step_forward,
};
