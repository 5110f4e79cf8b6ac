#include "providers/reference/reference.h"
#include "providers/step_values.h"

/* Workspace: the logits of one row [V], one gradient row [H], the log-sum-exp of every row [T_cap]; all double. */
static size_t workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)exec, (void)backward;
    const dt_cross_entropy_args *a = args;
    return sizeof(double) * (size_t)(a->weight.shape[0] + a->h.shape[1] + a->h.shape[0]);
}

static double logit(const dt_cross_entropy_args *a, int64_t t, int64_t v)
{
    double sum = 0;
    for (int64_t i = 0; i < a->h.shape[1]; i++)
        sum += ref_load2(&a->h, t, i) * ref_load2(&a->weight, v, i);
    return sum;
}

static double row_weight(const dt_cross_entropy_args *a, int64_t t)
{
    return dt_tensor_present(&a->row_weight) ? ref_load(&a->row_weight, t) : 1;
}

/* Loss of row t; leaves its logits and returns their log-sum-exp. */
static double row_forward(const dt_cross_entropy_args *a, int64_t t, double *logits, dt_cross_entropy_result *result)
{
    int32_t target = ((const int32_t *)a->target.data)[t];
    int64_t best = 0, V = a->weight.shape[0];
    double sum = 0;
    for (int64_t v = 0; v < V; v++) {
        logits[v] = logit(a, t, v);
        if (logits[v] > logits[best])
            best = v;
    }
    for (int64_t v = 0; v < V; v++)
        sum += exp(logits[v] - logits[best]);
    double lse = logits[best] + log(sum), loss = lse - logits[target];
    result->loss += row_weight(a, t) * loss;
    result->targets++;
    result->correct += best == target;
    if (dt_tensor_present(&a->row_loss))
        ref_store(&a->row_loss, t, loss);
    return lse;
}

/* dlogit_v = grad_scale weight (p_v - [v == target]);  dh = sum_v dlogit_v W_v */
static void row_input_gradient(const dt_cross_entropy_args *a, int64_t t, const double *logits, double lse, double *dh)
{
    int64_t H = a->h.shape[1];
    int32_t target = ((const int32_t *)a->target.data)[t];
    double scale = (double)dtp_grad_scale_now(a) * row_weight(a, t);
    for (int64_t i = 0; i < H; i++)
        dh[i] = 0;
    for (int64_t v = 0; v < a->weight.shape[0]; v++) {
        double dlogit = scale * (exp(logits[v] - lse) - (v == target));
        for (int64_t i = 0; i < H; i++)
            dh[i] += dlogit * ref_load2(&a->weight, v, i);
    }
    for (int64_t i = 0; i < H; i++)
        ref_store2(&a->dh, t, i, dh[i]);
}

/* dW_v += sum_t dlogit_tv h_t, with the logits computed again so that the sum can run in double. */
static void weight_gradient(const dt_cross_entropy_args *a, const double *lse, double *sum)
{
    const int32_t *target = a->target.data;
    int64_t H = a->h.shape[1];
    for (int64_t v = 0; v < a->weight.shape[0]; v++) {
        for (int64_t i = 0; i < H; i++)
            sum[i] = ref_load2(&a->dweight, v, i);
        for (int64_t t = 0; t < a->T; t++) {
            if (target[t] < 0)
                continue;
            double scale = (double)dtp_grad_scale_now(a) * row_weight(a, t);
            double dlogit = scale * (exp(logit(a, t, v) - lse[t]) - (v == target[t]));
            for (int64_t i = 0; i < H; i++)
                sum[i] += dlogit * ref_load2(&a->h, t, i);
        }
        for (int64_t i = 0; i < H; i++)
            ref_store2(&a->dweight, v, i, sum[i]);
    }
}

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)err;
    const dt_cross_entropy_args *a = args;
    const int32_t *target = a->target.data;
    double *logits = workspace, *dh = logits + a->weight.shape[0], *lse = dh + a->h.shape[1];
    dt_cross_entropy_result result = {0};
    if (dt_tensor_present(&a->dh))
        ref_zero_rows(&a->dh, 0, a->dh.shape[0]);
    for (int64_t t = 0; dt_tensor_present(&a->row_loss) && t < a->row_loss.shape[0]; t++)
        ref_store(&a->row_loss, t, 0);
    for (int64_t t = 0; t < a->T; t++) {
        if (target[t] < 0)
            continue;
        lse[t] = row_forward(a, t, logits, &result);
        if (dt_tensor_present(&a->dh))
            row_input_gradient(a, t, logits, lse[t], dh);
    }
    if (dt_tensor_present(&a->dweight))
        weight_gradient(a, lse, dh);
    *(a->result_device ? a->result_device : a->result) = result;
    return DT_OK;
}

const dt_op_set dtp_ref_cross_entropy = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_CROSS_ENTROPY,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    .workspace_bytes = workspace_bytes,
    .forward = forward,
};
