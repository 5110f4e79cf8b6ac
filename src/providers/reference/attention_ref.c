#include "providers/reference/reference.h"
#include <deltune/op/attention.h>

/* One query row of one head and the keys it may see. */
typedef struct query {
    int64_t row, head, kv_head;
    int64_t key_begin, key_end;
} query;

static const dt_seqs *key_seqs(const dt_attention_args *a)
{
    return a->kv_seqs.n_seq ? &a->kv_seqs : &a->seqs;
}

static query query_of(const dt_attention_args *a, int64_t n, int64_t row, int64_t head)
{
    const int32_t *q_cu = a->seqs.cu_seqlens, *k_cu = key_seqs(a)->cu_seqlens;
    return (query){.row = row,
                   .head = head,
                   .kv_head = head / (a->q.shape[1] / a->k.shape[1]),
                   .key_begin = k_cu[n],
                   .key_end = (int64_t)k_cu[n + 1] - q_cu[n + 1] + row + 1};
}

/* Probabilities of all visible keys into p[0 .. key_end - key_begin). */
static void softmax(const dt_attention_args *a, query i, double *p)
{
    double maximum = -INFINITY, sum = 0;
    for (int64_t j = i.key_begin; j < i.key_end; j++) {
        double score = 0;
        for (int64_t d = 0; d < a->q.shape[2]; d++)
            score += ref_load3(&a->q, i.row, i.head, d) * ref_load3(&a->k, j, i.kv_head, d);
        p[j - i.key_begin] = score * a->scale;
        maximum = fmax(maximum, p[j - i.key_begin]);
    }
    for (int64_t j = 0; j < i.key_end - i.key_begin; j++)
        sum += p[j] = exp(p[j] - maximum);
    for (int64_t j = 0; j < i.key_end - i.key_begin; j++)
        p[j] /= sum;
}

static int64_t longest(const dt_seqs *seqs)
{
    return seqs->T_cap > seqs->T ? seqs->T_cap : seqs->T;
}

static size_t workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)exec;
    const dt_attention_args *a = args;
    size_t keys = (size_t)longest(key_seqs(a));
    size_t sums = backward ? 2 * (size_t)a->k.shape[0] * (size_t)(a->k.shape[1] * a->k.shape[2]) : 0;
    return sizeof(double) * (2 * keys + sums + (size_t)a->q.shape[2]);
}

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)err;
    const dt_attention_args *a = args;
    double *p = workspace;
    for (int64_t n = 0; n < a->seqs.n_seq; n++)
        for (int64_t row = a->seqs.cu_seqlens[n]; row < a->seqs.cu_seqlens[n + 1]; row++)
            for (int64_t head = 0; head < a->q.shape[1]; head++) {
                query i = query_of(a, n, row, head);
                softmax(a, i, p);
                for (int64_t d = 0; d < a->q.shape[2]; d++) {
                    double sum = 0;
                    for (int64_t j = i.key_begin; j < i.key_end; j++)
                        sum += p[j - i.key_begin] * ref_load3(&a->v, j, i.kv_head, d);
                    ref_store3(&a->o, row, head, d, sum);
                }
            }
    ref_zero_rows(&a->o, a->seqs.T, a->o.shape[0]);
    return DT_OK;
}

/* ds_j = p_j (do.v_j - sum_k p_k do.v_k);  dq = scale sum_j ds_j k_j;  dk_j += scale ds_j q;  dv_j += p_j do */
static void query_backward(const dt_attention_args *a, query i, double *p, double *dp, double *dk, double *dv)
{
    int64_t D = a->q.shape[2], Hkv = a->k.shape[1];
    double mean = 0;
    softmax(a, i, p);
    for (int64_t j = i.key_begin; j < i.key_end; j++) {
        double sum = 0;
        for (int64_t d = 0; d < D; d++)
            sum += ref_load3(&a->d_o, i.row, i.head, d) * ref_load3(&a->v, j, i.kv_head, d);
        dp[j - i.key_begin] = sum;
        mean += p[j - i.key_begin] * sum;
    }
    for (int64_t d = 0; d < D; d++) {
        double dq = 0;
        for (int64_t j = i.key_begin; j < i.key_end; j++) {
            double probability = p[j - i.key_begin], ds = a->scale * probability * (dp[j - i.key_begin] - mean);
            int64_t at = (j * Hkv + i.kv_head) * D + d;
            dq += ds * ref_load3(&a->k, j, i.kv_head, d);
            dk[at] += ds * ref_load3(&a->q, i.row, i.head, d);
            dv[at] += probability * ref_load3(&a->d_o, i.row, i.head, d);
        }
        ref_store3(&a->dq, i.row, i.head, d, dq);
    }
}

static dt_status backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)err;
    const dt_attention_args *a = args;
    int64_t T = a->seqs.T, Hkv = a->k.shape[1], D = a->k.shape[2], keys = longest(&a->seqs);
    double *p = workspace, *dp = p + keys, *dk = dp + keys, *dv = dk + T * Hkv * D;
    for (int64_t i = 0; i < 2 * T * Hkv * D; i++)
        dk[i] = 0;
    for (int64_t n = 0; n < a->seqs.n_seq; n++)
        for (int64_t row = a->seqs.cu_seqlens[n]; row < a->seqs.cu_seqlens[n + 1]; row++)
            for (int64_t head = 0; head < a->q.shape[1]; head++)
                query_backward(a, query_of(a, n, row, head), p, dp, dk, dv);
    for (int64_t j = 0; j < T; j++)
        for (int64_t h = 0; h < Hkv; h++)
            for (int64_t d = 0; d < D; d++) {
                ref_store3(&a->dk, j, h, d, dk[(j * Hkv + h) * D + d]);
                ref_store3(&a->dv, j, h, d, dv[(j * Hkv + h) * D + d]);
            }
    ref_zero_rows(&a->dq, T, a->dq.shape[0]);
    ref_zero_rows(&a->dk, T, a->dk.shape[0]);
    ref_zero_rows(&a->dv, T, a->dv.shape[0]);
    return DT_OK;
}

const dt_op_set dtp_ref_attention = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_ATTENTION,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_GVA | DT_CAP_DETERMINISTIC,
    .workspace_bytes = workspace_bytes,
    .forward = forward,
    .backward = backward,
};
