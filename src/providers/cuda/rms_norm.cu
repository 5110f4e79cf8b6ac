/* DT_OP_RMS_NORM on CUDA: chooses the kernels and launches them. */
#include <deltune/op/rms_norm.h>

#include "providers/cuda/rms_norm.cuh"

static rms_norm_params rms_norm_make_params(const dt_rms_norm_args *a)
{
    rms_norm_params p;
    memset(&p, 0, sizeof p);
    p.x = rows_view_of(&a->x), p.y = rows_view_of(&a->y), p.weight = rows_view_of(&a->weight);
    p.dy = rows_view_of(&a->dy), p.dx = rows_view_of(&a->dx), p.residual = rows_view_of(&a->residual_grad);
    p.heads = (int32_t)rows_heads(&a->x);
    p.width = (int32_t)rows_width(&a->x);
    p.rows = a->x.shape[0] * p.heads;
    p.used = a->T * p.heads;
    p.eps = a->eps;
    p.zero_centered = a->zero_centered;
    return p;
}

enum { RMS_NORM_WIDEST = 8192 }; /* of the fast kernels */
static bool rms_norm_is_fast(const dt_rms_norm_args *a)
{
    return rows_width(&a->x) <= RMS_NORM_WIDEST && rows_fast(&a->x) && rows_fast(&a->y) && rows_fast(&a->dy) &&
           rows_fast(&a->dx) && rows_fast(&a->residual_grad) && rows_fast_weight(&a->weight) &&
           a->x.shape[0] * rows_heads(&a->x) <= INT32_MAX;
}

/* A team has several narrow rows at once in forward; in backward, which has three loads a row, it does not pay. */
template <int TEAM, int VECS>
static dt_status rms_norm_launch_forward(dt_exec *exec, const rms_norm_params &p, dt_err *err)
{
    enum { ROWS = TEAM < ROWS_THREADS ? 4 : 1 };
    return DT_LAUNCH(err, exec, dtp_blocks(p.rows, ROWS_THREADS / TEAM * ROWS), ROWS_THREADS, 256,
                     (rms_norm_forward_kernel<TEAM, VECS, ROWS>), p);
}
template <int TEAM, int VECS> static dt_status rms_norm_launch_backward(dt_exec *exec, rms_norm_params &p, dt_err *err)
{
    if (p.partial)
        return DT_LAUNCH(err, exec, dtp_blocks(p.rows, p.run), ROWS_THREADS, 256 + ROWS_THREADS * 8 * 4,
                         (rms_norm_backward_kernel<TEAM, VECS, true>), p);
    p.run = rows_share(p.rows, ROWS_THREADS / TEAM);
    return DT_LAUNCH(err, exec, dtp_blocks(p.rows, p.run), ROWS_THREADS, 256,
                     (rms_norm_backward_kernel<TEAM, VECS, false>), p);
}
/* The kernels for a width: threads a row, vectors a thread. */
#define RMS_NORM_CHOOSE(launch, exec, p, err)                                                                          \
    (p.width <= 128    ? launch<16, 1>(exec, p, err)                                                                   \
     : p.width <= 256  ? launch<32, 1>(exec, p, err)                                                                   \
     : p.width <= 1024 ? launch<128, 1>(exec, p, err)                                                                  \
     : p.width <= 2048 ? launch<128, 2>(exec, p, err)                                                                  \
     : p.width <= 3072 ? launch<128, 3>(exec, p, err)                                                                  \
     : p.width <= 4096 ? launch<128, 4>(exec, p, err)                                                                  \
     : p.width <= 5120 ? launch<128, 5>(exec, p, err)                                                                  \
                       : launch<128, 8>(exec, p, err))

static size_t rms_norm_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    const dt_rms_norm_args *a = (const dt_rms_norm_args *)args;
    (void)exec;
    return backward ? (size_t)(rows_runs(a->x.shape[0] * rows_heads(&a->x)) * rows_width(&a->x)) * sizeof(float) : 0;
}
static dt_status rms_norm_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    const dt_rms_norm_args *a = (const dt_rms_norm_args *)args;
    rms_norm_params p = rms_norm_make_params(a);
    (void)saved, (void)workspace;
    if (rms_norm_is_fast(a))
        return RMS_NORM_CHOOSE(rms_norm_launch_forward, exec, p, err);
    return DT_LAUNCH(err, exec, dtp_blocks(p.rows, ROWS_THREADS / 32), ROWS_THREADS, 0, rms_norm_plain_forward_kernel,
                     p);
}
static dt_status rms_norm_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    const dt_rms_norm_args *a = (const dt_rms_norm_args *)args;
    rms_norm_params p = rms_norm_make_params(a);
    dt_status st;
    (void)saved;
    p.run = rows_run_length(p.rows);
    p.partial = a->dweight.data ? (float *)workspace : NULL;
    int64_t runs = p.run ? dtp_blocks(p.rows, p.run) : 0;
    if (rms_norm_is_fast(a)) {
        st = RMS_NORM_CHOOSE(rms_norm_launch_backward, exec, p, err);
    } else {
        p.run = p.partial ? p.run : 1;
        st = DT_LAUNCH(err, exec, p.run ? dtp_blocks(p.rows, p.run * (ROWS_THREADS / 32)) : 0, ROWS_THREADS, 0,
                       rms_norm_plain_backward_kernel, p);
    }
    if (st == DT_OK && p.partial)
        st = dtp_cuda_add_runs(exec, (float *)a->dweight.data, p.partial, runs, p.width, p.width, err);
    return st;
}

extern "C" const dt_op_set dtp_cuda_rms_norm = {sizeof(dt_op_set),
                                                DT_OP_RMS_NORM,
                                                DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
                                                NULL,
                                                NULL,
                                                rms_norm_workspace_bytes,
                                                rms_norm_forward,
                                                rms_norm_backward,
                                                NULL};
