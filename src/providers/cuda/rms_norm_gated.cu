/* DT_OP_RMS_NORM_GATED on CUDA: chooses the kernels and launches them. */
#include <deltune/op/rms_norm_gated.h>

#include "providers/cuda/rms_norm_gated.cuh"

static gated_norm_params gated_norm_make_params(const dt_rms_norm_gated_args *a)
{
    gated_norm_params p;
    memset(&p, 0, sizeof p);
    p.x = rows_view_of(&a->x), p.z = rows_view_of(&a->z), p.y = rows_view_of(&a->y),
    p.weight = rows_view_of(&a->weight);
    p.dy = rows_view_of(&a->dy), p.dx = rows_view_of(&a->dx), p.dz = rows_view_of(&a->dz);
    p.heads = (int32_t)rows_heads(&a->x);
    p.width = (int32_t)rows_width(&a->x);
    p.rows = a->x.shape[0] * p.heads;
    p.used = a->T * p.heads;
    p.eps = a->eps;
    return p;
}
static bool gated_norm_is_fast(const dt_rms_norm_gated_args *a)
{
    return rows_width(&a->x) <= 256 && rows_fast(&a->x) && rows_fast(&a->z) && rows_fast(&a->y) && rows_fast(&a->dy) &&
           rows_fast(&a->dx) && rows_fast(&a->dz) && rows_fast_weight(&a->weight) &&
           a->x.shape[0] * rows_heads(&a->x) <= INT32_MAX;
}

/* A team has two rows at once in forward; in backward, which needs more registers, it does not pay. */
template <int TEAM> static dt_status gated_norm_launch_forward(dt_exec *exec, const gated_norm_params &p, dt_err *err)
{
    enum { ROWS = 2 };
    return DT_LAUNCH(err, exec, dtp_blocks(p.rows, ROWS_THREADS / TEAM * ROWS), ROWS_THREADS, 0,
                     (gated_norm_forward_kernel<TEAM, ROWS>), p);
}
template <int TEAM> static dt_status gated_norm_launch_backward(dt_exec *exec, gated_norm_params &p, dt_err *err)
{
    if (p.partial)
        return DT_LAUNCH(err, exec, dtp_blocks(p.rows, p.run), ROWS_THREADS, ROWS_THREADS * 8 * (int)sizeof(float),
                         (gated_norm_backward_kernel<TEAM, true>), p);
    p.run = rows_share(p.rows, ROWS_THREADS / TEAM);
    return DT_LAUNCH(err, exec, dtp_blocks(p.rows, p.run), ROWS_THREADS, 0, (gated_norm_backward_kernel<TEAM, false>),
                     p);
}
/* The kernels for a width: threads a row. */
#define GATED_NORM_CHOOSE(launch, exec, p, err) (p.width <= 128 ? launch<16>(exec, p, err) : launch<32>(exec, p, err))

static size_t gated_norm_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    const dt_rms_norm_gated_args *a = (const dt_rms_norm_gated_args *)args;
    (void)exec;
    return backward ? (size_t)(rows_runs(a->x.shape[0] * rows_heads(&a->x)) * rows_width(&a->x)) * sizeof(float) : 0;
}
static dt_status gated_norm_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    const dt_rms_norm_gated_args *a = (const dt_rms_norm_gated_args *)args;
    gated_norm_params p = gated_norm_make_params(a);
    (void)saved, (void)workspace;
    if (gated_norm_is_fast(a))
        return GATED_NORM_CHOOSE(gated_norm_launch_forward, exec, p, err);
    return DT_LAUNCH(err, exec, dtp_blocks(p.rows, ROWS_THREADS / 32), ROWS_THREADS, 0, gated_norm_plain_forward_kernel,
                     p);
}
static dt_status gated_norm_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    const dt_rms_norm_gated_args *a = (const dt_rms_norm_gated_args *)args;
    gated_norm_params p = gated_norm_make_params(a);
    dt_status st;
    (void)saved;
    p.run = rows_run_length(p.rows);
    p.partial = a->dweight.data ? (float *)workspace : NULL;
    int64_t runs = p.run ? dtp_blocks(p.rows, p.run) : 0;
    if (gated_norm_is_fast(a)) {
        st = GATED_NORM_CHOOSE(gated_norm_launch_backward, exec, p, err);
    } else {
        p.run = p.partial ? p.run : 1;
        st = DT_LAUNCH(err, exec, p.run ? dtp_blocks(p.rows, p.run * (ROWS_THREADS / 32)) : 0, ROWS_THREADS, 0,
                       gated_norm_plain_backward_kernel, p);
    }
    if (st == DT_OK && p.partial)
        st = dtp_cuda_add_runs(exec, (float *)a->dweight.data, p.partial, runs, p.width, p.width, err);
    return st;
}

extern "C" const dt_op_set dtp_cuda_rms_norm_gated = {sizeof(dt_op_set),
                                                      DT_OP_RMS_NORM_GATED,
                                                      DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
                                                      NULL,
                                                      NULL,
                                                      gated_norm_workspace_bytes,
                                                      gated_norm_forward,
                                                      gated_norm_backward,
                                                      NULL};
