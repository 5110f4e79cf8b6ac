/* DT_OP_ADAMW and DT_OP_GRAD_NORM on CUDA: launch their kernels. Segments that are given on the host only are copied to
 * the workspace first, which a recorded step does not allow: it gives segments_device. */
#include <math.h>

#include "providers/cuda/optimizer.cuh"

static size_t optimizer_segment_bytes(int64_t n)
{
    return dtp_round_up((size_t)n * sizeof(dt_param_segment), 256);
}
static int64_t optimizer_blocks(int64_t n)
{
    return dtp_min(OPTIMIZER_BLOCKS, dtp_blocks(n, OPTIMIZER_THREADS * 8));
}
static int64_t optimizer_share(int64_t n)
{
    return n ? dtp_blocks(dtp_blocks(n, optimizer_blocks(n)), 4) * 4 : 0;
}
static bool optimizer_aligned(const dt_tensor *t)
{
    return ((uintptr_t)t->data & 15) == 0;
}
static dt_status optimizer_segments(dt_exec *exec, const dt_param_segment **out, const dt_param_segment *host,
                                    const dt_param_segment *device, int64_t n, void *workspace, dt_err *err)
{
    *out = device ? device : (const dt_param_segment *)workspace;
    return device ? DT_OK : dtp_cuda_copy(exec, workspace, host, (size_t)n * sizeof(dt_param_segment), err);
}

/* ---- adamw ---- */

static size_t adamw_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)exec, (void)backward;
    return optimizer_segment_bytes(((const dt_adamw_args *)args)->n_segments);
}
static dt_status adamw_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    const dt_adamw_args *a = (const dt_adamw_args *)args;
    adamw_params p;
    (void)saved;
    if (a->param.shape[0] == 0)
        return DT_OK;
    memset(&p, 0, sizeof p);
    p.param = (float *)a->param.data, p.m = (float *)a->m.data, p.v = (float *)a->v.data;
    p.grad = (const float *)a->grad.data;
    p.n = a->param.shape[0], p.n_segments = a->n_segments, p.step = a->step;
    p.lr = a->lr, p.beta1 = a->beta1, p.beta2 = a->beta2, p.eps = a->eps, p.grad_scale = a->grad_scale;
    p.log_beta1 = log((double)a->beta1), p.log_beta2 = log((double)a->beta2);
    p.values = a->values, p.norm = a->norm;
    p.share = optimizer_share(p.n);
    dt_status st =
        optimizer_segments(exec, &p.segments, a->segments, a->segments_device, a->n_segments, workspace, err);
    if (st != DT_OK)
        return st;
    int64_t blocks = dtp_blocks(p.n, p.share);
    if (optimizer_aligned(&a->param) && optimizer_aligned(&a->grad) && optimizer_aligned(&a->m) &&
        optimizer_aligned(&a->v))
        return DT_LAUNCH(err, exec, blocks, OPTIMIZER_THREADS, (int)sizeof(adamw_scalars), adamw_kernel<true>, p);
    return DT_LAUNCH(err, exec, blocks, OPTIMIZER_THREADS, (int)sizeof(adamw_scalars), adamw_kernel<false>, p);
}

/* ---- gradient norm ---- */

/* Workspace: the result, the blocks' partial results, the segments. */
enum { GRAD_NORM_RESULT_BYTES = 256 };
static size_t grad_norm_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)exec, (void)backward;
    return GRAD_NORM_RESULT_BYTES + OPTIMIZER_BLOCKS * sizeof(grad_norm_partial) +
           optimizer_segment_bytes(((const dt_grad_norm_args *)args)->n_segments);
}
static dt_status grad_norm_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    const dt_grad_norm_args *a = (const dt_grad_norm_args *)args;
    const int threads = OPTIMIZER_THREADS, bytes = OPTIMIZER_THREADS * (int)sizeof(grad_norm_partial);
    grad_norm_params p;
    (void)saved;
    memset(&p, 0, sizeof p);
    p.grad = (const float *)a->grad.data;
    p.n = a->grad.shape[0], p.n_segments = a->n_segments;
    p.share = optimizer_share(p.n);
    p.blocks = p.n ? (int32_t)dtp_blocks(p.n, p.share) : 0;
    p.partial = (grad_norm_partial *)((char *)workspace + GRAD_NORM_RESULT_BYTES);
    p.result = a->result_device ? a->result_device : (dt_grad_norm_result *)workspace;
    dt_status st = optimizer_segments(exec, &p.segments, a->segments, a->segments_device, a->n_segments,
                                      p.partial + OPTIMIZER_BLOCKS, err);
    if (st == DT_OK && optimizer_aligned(&a->grad))
        st = DT_LAUNCH(err, exec, p.blocks, threads, bytes, grad_norm_sum_kernel<true>, p);
    else if (st == DT_OK)
        st = DT_LAUNCH(err, exec, p.blocks, threads, bytes, grad_norm_sum_kernel<false>, p);
    if (st == DT_OK)
        st = DT_LAUNCH(err, exec, 1, threads, bytes, grad_norm_finish_kernel, p);
    if (st == DT_OK && !a->result_device)
        st = dtp_cuda_copy(exec, a->result, p.result, sizeof *a->result, err);
    return st;
}

extern "C" const dt_op_set dtp_cuda_adamw = {
    sizeof(dt_op_set), DT_OP_ADAMW, DT_CAP_DETERMINISTIC, NULL, NULL, adamw_workspace_bytes, adamw_forward, NULL, NULL};
extern "C" const dt_op_set dtp_cuda_grad_norm = {sizeof(dt_op_set),
                                                 DT_OP_GRAD_NORM,
                                                 DT_CAP_DETERMINISTIC,
                                                 NULL,
                                                 NULL,
                                                 grad_norm_workspace_bytes,
                                                 grad_norm_forward,
                                                 NULL,
                                                 NULL};
