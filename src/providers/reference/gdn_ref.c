/* Gated delta rule, reference: the token recurrence and its exact backward, in double.
 * Contract: deltune/op/gdn.h. Backward: the recurrence run backwards.
 *
 * Work is one (sample, key head) at a time, so that the sums over the value heads of a key head stay inside one item.
 * Backward needs the state before every token. It keeps one state every SEGMENT tokens and recomputes between. */
#include <deltune/op/gdn.h>

#include "providers/reference/reference.h"

#include <omp.h>
#include <string.h>

enum { SEGMENT = 64 };
static const double norm_eps = 1e-6;

/* The scratch of one thread; all counts in doubles. */
typedef struct {
    double *state; /* [K,V] the running state, or its gradient in backward */
    double *delta; /* [SEGMENT,V] v_t - S'^T k_t (u_t without beta) of the tokens of one segment; forward uses row 0 */
    double *q, *k; /* [K] normalised rows of one token */
    double *segment; /* [SEGMENT+1,K,V] states before the tokens of one segment (backward) */
    double *starts;  /* [segments,K,V] state at the start of each segment (backward) */
    double *dq, *dk; /* [length,K] gradients of the normalised rows, summed over value heads (backward) */
} scratch;

static int64_t segments_of(int64_t length)
{
    return (length + SEGMENT - 1) / SEGMENT;
}

static int64_t scratch_doubles(const dt_gdn_args *a, bool backward)
{
    int64_t K = a->q.shape[2], V = a->v.shape[2], T = a->seqs.T_cap;
    int64_t base = K * V + SEGMENT * V + 2 * K;
    return backward ? base + (SEGMENT + 1 + segments_of(T)) * K * V + 2 * T * K : base;
}

static scratch scratch_of_thread(const dt_gdn_args *a, void *workspace, bool backward)
{
    int64_t K = a->q.shape[2], V = a->v.shape[2], T = a->seqs.T_cap;
    double *p = (double *)workspace + omp_get_thread_num() * scratch_doubles(a, backward);
    scratch s = {0};
    s.state = p, p += K * V;
    s.delta = p, p += SEGMENT * V;
    s.q = p, p += K;
    s.k = p, p += K;
    if (backward) {
        s.segment = p, p += (SEGMENT + 1) * K * V;
        s.starts = p, p += segments_of(T) * K * V;
        s.dq = p, p += T * K;
        s.dk = p;
    }
    return s;
}

static size_t gdn_workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    return (size_t)exec->threads * (size_t)scratch_doubles(args, backward) * sizeof(double);
}

/* Row [t,head] of q or k as the recurrence uses it; returns the factor that normalised it. */
static double load_row(const dt_gdn_args *a, const dt_tensor *x, int64_t t, int64_t head, double *row)
{
    int64_t K = x->shape[2];
    double sum = 0.0, factor = 1.0;
    for (int64_t i = 0; i < K; i++) {
        row[i] = ref_load3(x, t, head, i);
        sum += row[i] * row[i];
    }
    if (a->qk_l2norm)
        factor = 1.0 / sqrt(sum + norm_eps);
    for (int64_t i = 0; i < K; i++)
        row[i] *= factor;
    return factor;
}

/* [K,V] of sample n and a head; an absent initial state or state gradient is 0. */
static void load_state(const dt_tensor *x, int64_t n, int64_t head, double *state, int64_t K, int64_t V)
{
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < V; j++)
            state[i * V + j] = dt_tensor_present(x) ? ref_load(x, ref_at4(x, n, head, i, j)) : 0.0;
}

static void store_state(const dt_tensor *x, int64_t n, int64_t head, const double *state, int64_t K, int64_t V)
{
    for (int64_t i = 0; i < K && dt_tensor_present(x); i++)
        for (int64_t j = 0; j < V; j++)
            ref_store(x, ref_at4(x, n, head, i, j), state[i * V + j]);
}

/* One token: decays the state, writes k_t u_t^T into it. Leaves v_t - S'^T k_t in delta. */
static void advance(const dt_gdn_args *a, const scratch *s, double *state, double *delta, int64_t t, int64_t head)
{
    int64_t K = a->q.shape[2], V = a->v.shape[2];
    double decay = exp(ref_load2(&a->g, t, head));
    double beta = ref_load2(&a->beta, t, head);
    for (int64_t j = 0; j < V; j++)
        delta[j] = ref_load3(&a->v, t, head, j);
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < V; j++) {
            state[i * V + j] *= decay;
            delta[j] -= state[i * V + j] * s->k[i];
        }
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < V; j++)
            state[i * V + j] += s->k[i] * beta * delta[j];
}

static void forward_head(const dt_gdn_args *a, const scratch *s, int64_t n, int64_t head)
{
    int64_t K = a->q.shape[2], V = a->v.shape[2], group = a->v.shape[1] / a->q.shape[1];
    load_state(&a->initial_state, n, head, s->state, K, V);
    for (int64_t t = a->seqs.cu_seqlens[n]; t < a->seqs.cu_seqlens[n + 1]; t++) {
        load_row(a, &a->q, t, head / group, s->q);
        load_row(a, &a->k, t, head / group, s->k);
        advance(a, s, s->state, s->delta, t, head);
        for (int64_t j = 0; j < V; j++) {
            double o = 0.0;
            for (int64_t i = 0; i < K; i++)
                o += s->state[i * V + j] * s->q[i];
            ref_store3(&a->o, t, head, j, a->scale * o);
        }
    }
    store_state(&a->final_state, n, head, s->state, K, V);
}

static dt_status gdn_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)saved;
    (void)err;
    const dt_gdn_args *a = args;
    int64_t heads = a->v.shape[1], items = a->seqs.n_seq * heads;
#pragma omp parallel for schedule(dynamic) num_threads(exec->threads)
    for (int64_t item = 0; item < items; item++) {
        scratch s = scratch_of_thread(a, workspace, false);
        forward_head(a, &s, item / heads, item % heads);
    }
    ref_zero_rows(&a->o, a->seqs.T, a->seqs.T_cap);
    return DT_OK;
}

/* One token backward. On entry s->state is the gradient of the state after token t, on exit of the state before it.
 * `before` is the state before the token, the one after it follows in memory; q, k, delta are its rows.
 * Adds to dq, dk [K]. */
static void retreat(const dt_gdn_args *a, const scratch *s, const double *before, const double *delta, int64_t t,
                    int64_t head, double *dq, double *dk)
{
    int64_t K = a->q.shape[2], V = a->v.shape[2];
    const double *after = before + K * V;
    double *dS = s->state;
    double decay = exp(ref_load2(&a->g, t, head));
    double beta = ref_load2(&a->beta, t, head);
    double dbeta = 0.0, ddecay = 0.0;

    for (int64_t j = 0; j < V; j++) {
        double d_o = a->scale * ref_load3(&a->d_o, t, head, j);
        double du = 0.0; /* gradient of u_t[j] = beta * delta[j] */
        for (int64_t i = 0; i < K; i++) {
            dq[i] += after[i * V + j] * d_o;
            dS[i * V + j] += s->q[i] * d_o;
            dk[i] += dS[i * V + j] * beta * delta[j];
            du += dS[i * V + j] * s->k[i];
        }
        dbeta += du * delta[j];
        double dv = beta * du; /* delta = v - S'^T k */
        ref_store3(&a->dv, t, head, j, dv);
        for (int64_t i = 0; i < K; i++) {
            dk[i] -= decay * before[i * V + j] * dv;
            dS[i * V + j] -= s->k[i] * dv;
            ddecay += dS[i * V + j] * before[i * V + j];
            dS[i * V + j] *= decay;
        }
    }
    ref_store2(&a->dbeta, t, head, dbeta);
    ref_store2(&a->dg, t, head, ddecay * decay);
}

static void backward_head(const dt_gdn_args *a, const scratch *s, int64_t n, int64_t head)
{
    int64_t K = a->q.shape[2], V = a->v.shape[2], KV = K * V, group = a->v.shape[1] / a->q.shape[1];
    int64_t first = a->seqs.cu_seqlens[n], length = a->seqs.cu_seqlens[n + 1] - first;

    load_state(&a->initial_state, n, head, s->segment, K, V);
    for (int64_t t = 0; t < length; t++) {
        if (t % SEGMENT == 0)
            memcpy(s->starts + t / SEGMENT * KV, s->segment, (size_t)KV * sizeof(double));
        load_row(a, &a->k, first + t, head / group, s->k);
        advance(a, s, s->segment, s->delta, first + t, head);
    }
    load_state(&a->dfinal_state, n, head, s->state, K, V);
    for (int64_t part = segments_of(length) - 1; part >= 0; part--) {
        int64_t begin = part * SEGMENT, end = begin + SEGMENT < length ? begin + SEGMENT : length;
        memcpy(s->segment, s->starts + part * KV, (size_t)KV * sizeof(double));
        for (int64_t t = begin; t < end; t++) {
            double *after = s->segment + (t - begin + 1) * KV;
            memcpy(after, after - KV, (size_t)KV * sizeof(double));
            load_row(a, &a->k, first + t, head / group, s->k);
            advance(a, s, after, s->delta + (t - begin) * V, first + t, head);
        }
        for (int64_t t = end - 1; t >= begin; t--) {
            double *before = s->segment + (t - begin) * KV;
            load_row(a, &a->q, first + t, head / group, s->q);
            load_row(a, &a->k, first + t, head / group, s->k);
            retreat(a, s, before, s->delta + (t - begin) * V, first + t, head, s->dq + t * K, s->dk + t * K);
        }
    }
    store_state(&a->dinitial_state, n, head, s->state, K, V);
}

/* Gradient of a raw row from the gradient of the row the recurrence used. */
static void store_row_gradient(const dt_gdn_args *a, const dt_tensor *x, const dt_tensor *dx, int64_t t, int64_t head,
                               double *row, const double *dy)
{
    int64_t K = x->shape[2];
    double factor = load_row(a, x, t, head, row), dot = 0.0;
    if (a->qk_l2norm)
        for (int64_t i = 0; i < K; i++)
            dot += row[i] * dy[i];
    for (int64_t i = 0; i < K; i++)
        ref_store3(dx, t, head, i, factor * (dy[i] - row[i] * dot));
}

static void backward_key_head(const dt_gdn_args *a, const scratch *s, int64_t n, int64_t key_head)
{
    int64_t K = a->q.shape[2], group = a->v.shape[1] / a->q.shape[1];
    int64_t first = a->seqs.cu_seqlens[n], length = a->seqs.cu_seqlens[n + 1] - first;
    memset(s->dq, 0, (size_t)(length * K) * sizeof(double));
    memset(s->dk, 0, (size_t)(length * K) * sizeof(double));
    for (int64_t h = key_head * group; h < (key_head + 1) * group; h++)
        backward_head(a, s, n, h);
    for (int64_t t = 0; t < length; t++) {
        store_row_gradient(a, &a->q, &a->dq, first + t, key_head, s->q, s->dq + t * K);
        store_row_gradient(a, &a->k, &a->dk, first + t, key_head, s->k, s->dk + t * K);
    }
}

static dt_status gdn_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)saved;
    (void)err;
    const dt_gdn_args *a = args;
    int64_t heads = a->q.shape[1], items = a->seqs.n_seq * heads;
#pragma omp parallel for schedule(dynamic) num_threads(exec->threads)
    for (int64_t item = 0; item < items; item++) {
        scratch s = scratch_of_thread(a, workspace, true);
        backward_key_head(a, &s, item / heads, item % heads);
    }
    const dt_tensor *gradients[] = {&a->dq, &a->dk, &a->dv, &a->dg, &a->dbeta};
    for (size_t i = 0; i < sizeof gradients / sizeof *gradients; i++)
        ref_zero_rows(gradients[i], a->seqs.T, a->seqs.T_cap);
    return DT_OK;
}

const dt_op_set dtp_ref_gdn = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_GDN,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_STATE | DT_CAP_GVA | DT_CAP_DETERMINISTIC,
    .workspace_bytes = gdn_workspace_bytes,
    .forward = gdn_forward,
    .backward = gdn_backward,
};
