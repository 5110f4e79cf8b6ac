/* DT_OP_CAUSAL_CONV1D_STEP and DT_OP_GDN_STEP on CUDA: launch their kernels. */
#include <deltune/op/causal_conv1d.h>
#include <deltune/op/gdn.h>
#include <stdio.h>

#include "providers/cuda/decode.cuh"

static dt_status conv_step_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    const dt_causal_conv1d_step_args *a = (const dt_causal_conv1d_step_args *)args;
    conv_step_params p;
    (void)saved, (void)workspace;
    memset(&p, 0, sizeof p);
    p.x = rows_view_of(&a->x), p.weight = rows_view_of(&a->weight), p.bias = rows_view_of(&a->bias),
    p.state = rows_view_of(&a->state);
    p.y = rows_view_of(&a->y);
    p.streams = a->x.shape[0], p.channels = a->x.shape[1];
    p.W = (int32_t)a->weight.shape[1], p.silu = a->silu;
    return DT_LAUNCH(err, exec, dtp_blocks(p.streams * p.channels, ROWS_THREADS), ROWS_THREADS, 0, conv_step_kernel, p);
}

static int gdn_step_verify(const dt_exec *exec, const void *args, char *why, size_t why_size)
{
    const dt_gdn_step_args *a = (const dt_gdn_step_args *)args;
    (void)exec;
    if (a->q.shape[2] <= GDN_STEP_MAX_K)
        return 1;
    snprintf(why, why_size, "key heads of %lld channels, the kernel takes up to %d", (long long)a->q.shape[2],
             GDN_STEP_MAX_K);
    return 0;
}
static dt_status gdn_step_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    const dt_gdn_step_args *a = (const dt_gdn_step_args *)args;
    gdn_step_params p;
    (void)saved, (void)workspace;
    memset(&p, 0, sizeof p);
    p.q = rows_view_of(&a->q), p.k = rows_view_of(&a->k), p.v = rows_view_of(&a->v), p.g = rows_view_of(&a->g),
    p.beta = rows_view_of(&a->beta);
    p.o = rows_view_of(&a->o);
    p.state = (float *)a->state.data;
    p.stream_stride = a->state.stride[0], p.head_stride = a->state.stride[1], p.row_stride = a->state.stride[2];
    p.value_heads = (int32_t)a->v.shape[1];
    p.group = (int32_t)(a->v.shape[1] / a->q.shape[1]);
    p.K = (int32_t)a->q.shape[2], p.V = (int32_t)a->v.shape[2];
    p.scale = a->scale, p.l2norm = a->qk_l2norm;
    int64_t blocks = a->q.shape[0] * p.value_heads * dtp_blocks(p.V, GDN_STEP_COLUMNS);
    bool vectors = p.V % 4 == 0 && ((uintptr_t)p.state & 15) == 0 && p.stream_stride % 4 == 0 &&
                   p.head_stride % 4 == 0 && p.row_stride % 4 == 0;
    if (!vectors)
        return DT_LAUNCH(err, exec, blocks, GDN_STEP_THREADS, (int)sizeof(gdn_step_shared),
                         (gdn_step_kernel<GDN_STEP_MAX_K / GDN_STEP_ROWS, false>), p);
    if (p.K <= 128)
        return DT_LAUNCH(err, exec, blocks, GDN_STEP_THREADS, (int)sizeof(gdn_step_shared),
                         (gdn_step_kernel<128 / GDN_STEP_ROWS, true>), p);
    return DT_LAUNCH(err, exec, blocks, GDN_STEP_THREADS, (int)sizeof(gdn_step_shared),
                     (gdn_step_kernel<GDN_STEP_MAX_K / GDN_STEP_ROWS, true>), p);
}

extern "C" const dt_op_set dtp_cuda_causal_conv1d_step = {sizeof(dt_op_set),
                                                          DT_OP_CAUSAL_CONV1D_STEP,
                                                          DT_CAP_STATE | DT_CAP_DETERMINISTIC,
                                                          NULL,
                                                          NULL,
                                                          NULL,
                                                          conv_step_forward,
                                                          NULL,
                                                          NULL};
extern "C" const dt_op_set dtp_cuda_gdn_step = {
    sizeof(dt_op_set), DT_OP_GDN_STEP, DT_CAP_STATE | DT_CAP_GVA | DT_CAP_DETERMINISTIC,
    gdn_step_verify,   NULL,           NULL,
    gdn_step_forward,  NULL,           NULL};
