/* DT_OP_SIGMOID_GATE and DT_OP_SWIGLU on CUDA: choose the kernels and launch them. */
#include <deltune/op/activation.h>

#include "providers/cuda/activation.cuh"

static activation_params activation_make_params(const dt_gate_args *a)
{
    activation_params p;
    memset(&p, 0, sizeof p);
    p.x = rows_view_of(&a->x), p.gate = rows_view_of(&a->gate), p.y = rows_view_of(&a->y);
    p.dy = rows_view_of(&a->dy), p.dx = rows_view_of(&a->dx), p.dgate = rows_view_of(&a->dgate);
    p.T = a->T, p.T_cap = a->x.shape[0];
    p.heads = (int32_t)rows_heads(&a->x);
    p.width = (int32_t)rows_width(&a->x);
    return p;
}
static bool activation_is_fast(const dt_gate_args *a)
{
    return rows_fast(&a->x) && rows_fast(&a->gate) && rows_fast(&a->y) && rows_fast(&a->dy) && rows_fast(&a->dx) &&
           rows_fast(&a->dgate);
}
static int64_t activation_blocks(const activation_params &p, int rows)
{
    return dtp_blocks((int64_t)p.heads * (p.width / 8), ROWS_THREADS) * dtp_blocks(p.T_cap, rows);
}
static int64_t activation_plain_blocks(const activation_params &p)
{
    return dtp_blocks(p.T_cap * p.heads * p.width, ROWS_THREADS);
}
template <bool SILU>
static dt_status activation_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    const dt_gate_args *a = (const dt_gate_args *)args;
    activation_params p = activation_make_params(a);
    (void)saved, (void)workspace;
    if (activation_is_fast(a))
        return DT_LAUNCH(err, exec, activation_blocks(p, ACTIVATION_FORWARD_ROWS), ROWS_THREADS, 0,
                         activation_forward_kernel<SILU>, p);
    return DT_LAUNCH(err, exec, activation_plain_blocks(p), ROWS_THREADS, 0, activation_plain_kernel<SILU>, p, 0);
}
template <bool SILU>
static dt_status activation_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    const dt_gate_args *a = (const dt_gate_args *)args;
    activation_params p = activation_make_params(a);
    (void)saved, (void)workspace;
    if (activation_is_fast(a))
        return DT_LAUNCH(err, exec, activation_blocks(p, ACTIVATION_BACKWARD_ROWS), ROWS_THREADS, 0,
                         activation_backward_kernel<SILU>, p);
    return DT_LAUNCH(err, exec, activation_plain_blocks(p), ROWS_THREADS, 0, activation_plain_kernel<SILU>, p, 1);
}

extern "C" const dt_op_set dtp_cuda_sigmoid_gate = {sizeof(dt_op_set),
                                                    DT_OP_SIGMOID_GATE,
                                                    DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
                                                    NULL,
                                                    NULL,
                                                    NULL,
                                                    activation_forward<false>,
                                                    activation_backward<false>,
                                                    NULL};
extern "C" const dt_op_set dtp_cuda_swiglu = {sizeof(dt_op_set),
                                              DT_OP_SWIGLU,
                                              DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
                                              NULL,
                                              NULL,
                                              NULL,
                                              activation_forward<true>,
                                              activation_backward<true>,
                                              NULL};
