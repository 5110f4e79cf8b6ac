/* Depthwise causal convolution inside each sample, reference. Contract: deltune/op/causal_conv1d.h; forward and exact
 * adjoint. One channel of one sample at a time. */
#include <deltune/op/causal_conv1d.h>

#include "providers/reference/reference.h"

/* One sample: rows begin..begin+length-1 of x, state index n. */
typedef struct {
    const dt_causal_conv1d_args *a;
    int64_t n, begin, length, width;
} sample;

static sample sample_at(const dt_causal_conv1d_args *a, int64_t n)
{
    int64_t begin = a->seqs.cu_seqlens[n];
    return (sample){a, n, begin, a->seqs.cu_seqlens[n + 1] - begin, a->weight.shape[1]};
}

/* Input t of the sample, reaching back into the initial state: -width <= t < length. */
static double input(const sample *s, int64_t t, int64_t c)
{
    const dt_causal_conv1d_args *a = s->a;
    if (t >= 0)
        return ref_load2(&a->x, s->begin + t, c);
    if (!dt_tensor_present(&a->initial_state))
        return 0.0;
    return ref_load3(&a->initial_state, s->n, c, s->width + t);
}

/* The convolution before the activation. */
static double preactivation(const sample *s, int64_t t, int64_t c)
{
    const dt_causal_conv1d_args *a = s->a;
    double p = dt_tensor_present(&a->bias) ? ref_load(&a->bias, c) : 0.0;
    for (int64_t j = 0; j < s->width; j++)
        p += ref_load2(&a->weight, c, j) * input(s, t - (s->width - 1) + j, c);
    return p;
}

static double preactivation_gradient(const sample *s, int64_t t, int64_t c)
{
    const dt_causal_conv1d_args *a = s->a;
    double dy = ref_load2(&a->dy, s->begin + t, c);
    return a->silu ? dy * ref_silu_derivative(preactivation(s, t, c)) : dy;
}

static double final_state_gradient(const sample *s, int64_t slot, int64_t c)
{
    const dt_tensor *d = &s->a->dfinal_state;
    return dt_tensor_present(d) && slot >= 0 && slot < s->width ? ref_load3(d, s->n, c, slot) : 0.0;
}

static dt_status conv_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    const dt_causal_conv1d_args *a = args;
    for (int64_t n = 0; n < a->seqs.n_seq; n++) {
        sample s = sample_at(a, n);
        for (int64_t c = 0; c < a->x.shape[1]; c++) {
            for (int64_t t = 0; t < s.length; t++) {
                double p = preactivation(&s, t, c);
                ref_store2(&a->y, s.begin + t, c, a->silu ? ref_silu(p) : p);
            }
            if (dt_tensor_present(&a->final_state))
                for (int64_t slot = 0; slot < s.width; slot++)
                    ref_store3(&a->final_state, n, c, slot, input(&s, s.length - s.width + slot, c));
        }
    }
    ref_zero_rows(&a->y, a->seqs.T, a->seqs.T_cap);
    return DT_OK;
}

static void backward_channel(const sample *s, int64_t c, double *dw, double *db)
{
    const dt_causal_conv1d_args *a = s->a;
    int64_t W = s->width, L = s->length;
    for (int64_t t = 0; t < L; t++) {
        double dp = preactivation_gradient(s, t, c), dx = final_state_gradient(s, t + W - L, c);
        for (int64_t i = 0; i < W; i++) {
            dw[W - 1 - i] += dp * input(s, t - i, c);
            if (t + i < L)
                dx += ref_load2(&a->weight, c, W - 1 - i) * preactivation_gradient(s, t + i, c);
        }
        *db += dp;
        ref_store2(&a->dx, s->begin + t, c, dx);
    }
    if (!dt_tensor_present(&a->dinitial_state))
        return;
    for (int64_t slot = 0; slot < W; slot++) {
        double d = final_state_gradient(s, slot - L, c);
        for (int64_t t = 0; t < L && t < slot; t++)
            d += preactivation_gradient(s, t, c) * ref_load2(&a->weight, c, slot - 1 - t);
        ref_store3(&a->dinitial_state, s->n, c, slot, d);
    }
}

static dt_status conv_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)workspace, (void)err;
    const dt_causal_conv1d_args *a = args;
    for (int64_t c = 0; c < a->x.shape[1]; c++) {
        double dw[8] = {0}, db = 0.0;
        for (int64_t n = 0; n < a->seqs.n_seq; n++) {
            sample s = sample_at(a, n);
            backward_channel(&s, c, dw, &db);
        }
        if (dt_tensor_present(&a->dweight))
            for (int64_t j = 0; j < a->weight.shape[1]; j++)
                ref_add(&a->dweight, ref_at2(&a->dweight, c, j), dw[j]);
        if (dt_tensor_present(&a->dbias))
            ref_add(&a->dbias, c, db);
    }
    ref_zero_rows(&a->dx, a->seqs.T, a->seqs.T_cap);
    return DT_OK;
}

const dt_op_set dtp_ref_causal_conv1d = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_CAUSAL_CONV1D,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_STATE | DT_CAP_DETERMINISTIC,
    .forward = conv_forward,
    .backward = conv_backward,
};
