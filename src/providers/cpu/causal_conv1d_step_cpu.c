/* One token of the causal convolution for each of n streams (decode). Contract: deltune/op/causal_conv1d.h. */
#include <deltune/op/causal_conv1d.h>

#include "providers/cpu/common.h"

/* Channel c: the state moves up by one slot, x joins, the weights meet them. bias may be NULL. */
static void step_channels(const dt_causal_conv1d_step_args *a, int64_t n, const float *weight, const float *bias)
{
    int64_t C = a->x.shape[1], W = a->weight.shape[1];
    const float *x = dtp_row(&a->x, n);
    float *y = dtp_row(&a->y, n);
    for (int64_t c = 0; c < C; c++) {
        float *state = dtp_head_row(&a->state, n, c), p = bias ? bias[c] : 0.0f, in = x[c];
        for (int64_t j = 0; j + 1 < W; j++) {
            state[j] = state[j + 1];
            p += weight[c * W + j] * state[j];
        }
        state[W - 1] = in;
        y[c] = p + weight[c * W + W - 1] * in;
    }
    if (a->silu)
        dtp_row_kernels()->sigmoid_gate(y, y, y, C);
}

static size_t step_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)exec, (void)backward;
    const dt_causal_conv1d_step_args *a = args;
    return (size_t)(a->x.shape[1] * (a->weight.shape[1] + 1)) * sizeof(float);
}

static dt_status step_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)err;
    const dt_causal_conv1d_step_args *a = args;
    int64_t C = a->x.shape[1], W = a->weight.shape[1], n = a->x.shape[0];
    float *weight = workspace, *bias = dt_tensor_present(&a->bias) ? weight + C * W : NULL;
    for (int64_t c = 0; c < C; c++) {
        dt_tensor row = dt_tensor_slice(a->weight, 0, c, c + 1);
        dtp_weight_f32(weight + c * W, &row, W, 0.0f);
    }
    if (bias)
        dtp_weight_f32(bias, &a->bias, C, 0.0f);
#pragma omp parallel for num_threads(dtp_threads_for(exec, n *C))
    for (int64_t i = 0; i < n; i++)
        step_channels(a, i, weight, bias);
    return DT_OK;
}

static int step_verify(const dt_exec *exec, const void *args, char *why, size_t why_size)
{
    (void)exec;
    const dt_causal_conv1d_step_args *a = args;
    return dtp_is_f32(&a->x, "x", why, why_size);
}

const dt_op_set dtp_cpu_causal_conv1d_step = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_CAUSAL_CONV1D_STEP,
    .caps = DT_CAP_STATE | DT_CAP_DETERMINISTIC,
    .verify = step_verify,
    .workspace_bytes = step_workspace_bytes,
    .forward = step_forward,
};
