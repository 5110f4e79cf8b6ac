/* DT_OP_CAUSAL_CONV1D on CUDA: chooses the kernels and launches them. */
#include <deltune/op/causal_conv1d.h>

#include "providers/cuda/causal_conv1d.cuh"
#include "providers/cuda/device.cuh"

static conv_tensor tensor_of(const dt_tensor *t)
{
    conv_tensor c = {t->data, t->stride[0], t->dtype == DT_F32};
    return c;
}
static conv_params make_params(const dt_causal_conv1d_args *a)
{
    conv_params p;
    memset(&p, 0, sizeof p);
    p.x = tensor_of(&a->x), p.y = tensor_of(&a->y), p.dy = tensor_of(&a->dy), p.dx = tensor_of(&a->dx);
    p.weight = tensor_of(&a->weight), p.bias = tensor_of(&a->bias);
    p.initial_state = tensor_of(&a->initial_state), p.final_state = tensor_of(&a->final_state);
    p.dfinal_state = tensor_of(&a->dfinal_state), p.dinitial_state = tensor_of(&a->dinitial_state);
    p.dweight = (float *)a->dweight.data, p.dbias = (float *)a->dbias.data;
    p.cu = a->seqs.cu_seqlens_device;
    p.n_seq = (int32_t)a->seqs.n_seq, p.n_seq_cap = (int32_t)a->seqs.n_seq_cap;
    p.W = (int32_t)a->weight.shape[1];
    p.silu = a->silu;
    p.channels = a->x.shape[1];
    p.T_cap = a->seqs.T_cap;
    return p;
}

static bool row_ready(const dt_tensor *t)
{
    return !t->data || (t->dtype == DT_BF16 && ((uintptr_t)t->data & 15) == 0 && t->stride[0] % 8 == 0);
}
/* The run kernels' domain. */
static bool by_runs(const dt_causal_conv1d_args *a)
{
    return a->weight.shape[1] == 4 && a->x.shape[1] % 8 == 0 && row_ready(&a->x) && row_ready(&a->y) &&
           row_ready(&a->dy) && row_ready(&a->dx) && !a->bias.data && !a->dbias.data && !a->initial_state.data &&
           !a->final_state.data && !a->dfinal_state.data && !a->dinitial_state.data;
}
/* Tokens a run: long runs re-read less halo and leave fewer partial sums, short ones fill the card. Depends on T_cap
 * only, so that results do not depend on the card. */
static int32_t run_length(const dt_causal_conv1d_args *a, bool weights)
{
    return a->seqs.T_cap < 4096 ? 16 : weights ? 128 : 64;
}
static int64_t run_blocks(const conv_params *p)
{
    return dtp_blocks(p->T_cap, p->run) * dtp_blocks(p->channels / 8, RUN_THREADS);
}
static int64_t element_blocks(const conv_params *p, bool states)
{
    return dtp_blocks(p->T_cap * p->channels + (states ? p->n_seq * p->channels * p->W : 0), CONV_THREADS);
}

static size_t conv_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    const dt_causal_conv1d_args *a = (const dt_causal_conv1d_args *)args;
    (void)exec;
    if (!backward)
        return 0;
    return (size_t)dtp_blocks(a->seqs.T_cap, run_length(a, true)) * 4 * (size_t)a->x.shape[1] * sizeof(float);
}
static dt_status conv_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    const dt_causal_conv1d_args *a = (const dt_causal_conv1d_args *)args;
    conv_params p = make_params(a);
    (void)saved, (void)workspace;
    p.run = run_length(a, false);
    if (by_runs(a))
        return DT_LAUNCH(err, exec, run_blocks(&p), RUN_THREADS, 128, conv_run_forward_kernel, p);
    return DT_LAUNCH(err, exec, element_blocks(&p, a->final_state.data != NULL), CONV_THREADS, 0,
                     conv_element_forward_kernel, p);
}
static dt_status conv_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    const dt_causal_conv1d_args *a = (const dt_causal_conv1d_args *)args;
    conv_params p = make_params(a);
    bool weights = p.dweight || p.dbias;
    dt_status st;
    (void)saved;
    p.run = run_length(a, weights);
    p.partial = (float *)workspace;
    if (!by_runs(a)) {
        st = DT_LAUNCH(err, exec, element_blocks(&p, a->dinitial_state.data != NULL), CONV_THREADS, 0,
                       conv_element_backward_kernel, p);
        if (st == DT_OK && weights)
            st = DT_LAUNCH(err, exec, dtp_blocks(p.channels * (p.W + 1) * 32, CONV_THREADS), CONV_THREADS, 0,
                           conv_element_weights_kernel, p);
        return st;
    }
    if (!weights)
        return DT_LAUNCH(err, exec, run_blocks(&p), RUN_THREADS, 128, conv_run_backward_kernel<false>, p);
    st = DT_LAUNCH(err, exec, run_blocks(&p), RUN_THREADS, 128, conv_run_backward_kernel<true>, p);
    if (st == DT_OK)
        st = DT_LAUNCH(err, exec, dtp_blocks(4 * p.channels, CONV_THREADS), CONV_THREADS, 0, conv_reduce_kernel, p,
                       (int32_t)dtp_blocks(p.T_cap, p.run));
    return st;
}

extern "C" const dt_op_set dtp_cuda_causal_conv1d = {sizeof(dt_op_set),
                                                     DT_OP_CAUSAL_CONV1D,
                                                     DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_STATE |
                                                         DT_CAP_DETERMINISTIC,
                                                     NULL,
                                                     NULL,
                                                     conv_workspace_bytes,
                                                     conv_forward,
                                                     conv_backward,
                                                     NULL};
