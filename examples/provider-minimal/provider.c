/* A complete third-party provider: the gated delta rule, forward and backward, token by token in plain C.
 *
 * It shows all that a provider needs: one exported symbol, one table, one operator set whose forward, backward, sizes
 * and verify belong together. docs/providers.md walks through it. Slow on purpose; what it computes is in
 * deltune/op/gdn.h. */
#include <deltune/op/gdn.h>
#include <deltune/provider.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* One token of one head: unit-stride rows of the caller's tensors, q and k normalised into `qk`. */
typedef struct token {
    const float *q, *k, *v;
    float q_scale, k_scale; /* 1 / sqrt(sum x^2 + 1e-6), or 1 */
    float decay, beta;
} token;

static float *at(const dt_tensor *t, int64_t row, int64_t head)
{
    return (float *)t->data + row * t->stride[0] + head * (t->rank == 3 ? t->stride[1] : 1);
}

static float inverse_norm(const float *x, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return 1 / sqrtf(sum + 1e-6f);
}

static token load(const dt_gdn_args *a, int64_t t, int64_t h)
{
    int64_t kh = h / (a->v.shape[1] / a->k.shape[1]), K = a->k.shape[2];
    token x = {at(&a->q, t, kh), at(&a->k, t, kh), at(&a->v, t, h), 1, 1, expf(*at(&a->g, t, h)), *at(&a->beta, t, h)};
    if (a->qk_l2norm) {
        x.q_scale = inverse_norm(x.q, K);
        x.k_scale = inverse_norm(x.k, K);
    }
    return x;
}

/* S <- decay S, then S <- S + k delta^T with delta = beta (v - S^T k). `next` may be `S`. */
static void step(const token *x, const float *S, float *next, float *delta, int64_t K, int64_t V)
{
    for (int64_t j = 0; j < V; j++)
        delta[j] = x->v[j];
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < V; j++) {
            next[i * V + j] = x->decay * S[i * V + j];
            delta[j] -= next[i * V + j] * x->k[i] * x->k_scale;
        }
    for (int64_t j = 0; j < V; j++)
        delta[j] *= x->beta;
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < V; j++)
            next[i * V + j] += x->k[i] * x->k_scale * delta[j];
}

/* The initial state of sample n, or zero. */
static void start(const dt_gdn_args *a, int64_t n, int64_t h, float *S)
{
    int64_t size = a->k.shape[2] * a->v.shape[2];
    if (a->initial_state.data)
        memcpy(S, (const float *)a->initial_state.data + (n * a->v.shape[1] + h) * size, (size_t)size * sizeof *S);
    else
        memset(S, 0, (size_t)size * sizeof *S);
}

static void zero_rows(const dt_tensor *t, int64_t begin, int64_t end)
{
    int64_t heads = t->rank == 3 ? t->shape[1] : 1, width = t->shape[t->rank - 1];
    for (int64_t r = begin; r < end; r++)
        for (int64_t h = 0; h < heads; h++)
            memset(at(t, r, h), 0, (size_t)width * sizeof(float));
}

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)err;
    const dt_gdn_args *a = args;
    int64_t K = a->k.shape[2], V = a->v.shape[2], Hv = a->v.shape[1];
    float *S = workspace, *delta = S + K * V;
    for (int64_t n = 0; n < a->seqs.n_seq; n++)
        for (int64_t h = 0; h < Hv; h++) {
            start(a, n, h, S);
            for (int64_t t = a->seqs.cu_seqlens[n]; t < a->seqs.cu_seqlens[n + 1]; t++) {
                token x = load(a, t, h);
                step(&x, S, S, delta, K, V);
                float *o = at(&a->o, t, h);
                memset(o, 0, (size_t)V * sizeof *o);
                for (int64_t i = 0; i < K; i++)
                    for (int64_t j = 0; j < V; j++)
                        o[j] += S[i * V + j] * x.q[i] * x.q_scale * a->scale;
            }
            if (a->final_state.data)
                memcpy((float *)a->final_state.data + (n * Hv + h) * K * V, S, (size_t)(K * V) * sizeof *S);
        }
    zero_rows(&a->o, a->seqs.T, a->seqs.T_cap); /* rows of no sample */
    return DT_OK;
}

/* x was divided by its norm: adds the gradient of the raw x. dy and y = x * scale are of length K. */
static void norm_backward(const float *x, float scale, const float *dy, float *dx, int64_t K, bool normed)
{
    float dot = 0;
    for (int64_t i = 0; normed && i < K; i++)
        dot += dy[i] * x[i] * scale;
    for (int64_t i = 0; i < K; i++)
        dx[i] += scale * (dy[i] - x[i] * scale * dot);
}

/* One token, backwards: G is the gradient of the state after it, and becomes that of the state before it. */
static void step_back(const dt_gdn_args *a, int64_t t, int64_t h, const float *before, float *after, float *G,
                      float *row)
{
    int64_t K = a->k.shape[2], V = a->v.shape[2], kh = h / (a->v.shape[1] / a->k.shape[1]);
    float *delta = row, *ddelta = delta + V, *dq = ddelta + V, *dk = dq + K, dbeta = 0, dg = 0;
    const float *d_o = at(&a->d_o, t, h);
    token x = load(a, t, h);
    step(&x, before, after, delta, K, V);
    memset(ddelta, 0, (size_t)V * sizeof *ddelta);
    for (int64_t i = 0; i < K; i++) {
        dq[i] = dk[i] = 0;
        for (int64_t j = 0; j < V; j++) {
            dq[i] += after[i * V + j] * d_o[j] * a->scale;
            G[i * V + j] += x.q[i] * x.q_scale * a->scale * d_o[j];
            dk[i] += G[i * V + j] * delta[j];
            ddelta[j] += G[i * V + j] * x.k[i] * x.k_scale;
        }
    }
    for (int64_t j = 0; j < V; j++) {
        float read = 0; /* (S'^T k)_j, S' the decayed state before */
        for (int64_t i = 0; i < K; i++)
            read += x.decay * before[i * V + j] * x.k[i] * x.k_scale;
        dbeta += ddelta[j] * (x.v[j] - read);
        at(&a->dv, t, h)[j] = x.beta * ddelta[j];
    }
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < V; j++) {
            float decayed = x.decay * before[i * V + j], dm = -x.beta * ddelta[j];
            float dS = G[i * V + j] + x.k[i] * x.k_scale * dm;
            dk[i] += decayed * dm;
            dg += dS * decayed;
            G[i * V + j] = x.decay * dS;
        }
    *at(&a->dg, t, h) = dg;
    *at(&a->dbeta, t, h) = dbeta;
    norm_backward(x.q, x.q_scale, dq, at(&a->dq, t, kh), K, a->qk_l2norm);
    norm_backward(x.k, x.k_scale, dk, at(&a->dk, t, kh), K, a->qk_l2norm);
}

static dt_status backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)exec, (void)saved, (void)err;
    const dt_gdn_args *a = args;
    int64_t K = a->k.shape[2], V = a->v.shape[2], Hv = a->v.shape[1], size = K * V;
    float *G = workspace, *after = G + size, *row = after + size, *states = row + 2 * (K + V);
    zero_rows(&a->dq, 0, a->seqs.T_cap); /* summed over the value heads of a key head */
    zero_rows(&a->dk, 0, a->seqs.T_cap);
    zero_rows(&a->dv, a->seqs.T, a->seqs.T_cap);
    zero_rows(&a->dg, a->seqs.T, a->seqs.T_cap);
    zero_rows(&a->dbeta, a->seqs.T, a->seqs.T_cap);
    for (int64_t n = 0; n < a->seqs.n_seq; n++)
        for (int64_t h = 0; h < Hv; h++) {
            int64_t begin = a->seqs.cu_seqlens[n], end = a->seqs.cu_seqlens[n + 1];
            start(a, n, h, states);
            for (int64_t t = begin; t + 1 < end; t++) { /* the state before each token */
                token x = load(a, t, h);
                step(&x, states + (t - begin) * size, states + (t - begin + 1) * size, row, K, V);
            }
            if (a->dfinal_state.data)
                memcpy(G, (const float *)a->dfinal_state.data + (n * Hv + h) * size, (size_t)size * sizeof *G);
            else
                memset(G, 0, (size_t)size * sizeof *G);
            for (int64_t t = end - 1; t >= begin; t--)
                step_back(a, t, h, states + (t - begin) * size, after, G, row);
            if (a->dinitial_state.data)
                memcpy((float *)a->dinitial_state.data + (n * Hv + h) * size, G, (size_t)size * sizeof *G);
        }
    return DT_OK;
}

static size_t workspace_bytes(const dt_exec *exec, const void *args, bool is_backward)
{
    (void)exec;
    const dt_gdn_args *a = args;
    size_t K = (size_t)a->k.shape[2], V = (size_t)a->v.shape[2], states = is_backward ? 3 + (size_t)a->seqs.T_cap : 1;
    return (states * K * V + 2 * (K + V)) * sizeof(float);
}

static int verify(const dt_exec *exec, const void *args, char *why, size_t n)
{
    (void)exec;
    const dt_gdn_args *a = args;
    if (a->q.dtype == DT_F32)
        return 1;
    snprintf(why, n, "only F32 is implemented");
    return 0;
}

static const dt_op_set gdn = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_GDN,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_STATE | DT_CAP_GVA | DT_CAP_DETERMINISTIC,
    .verify = verify,
    .workspace_bytes = workspace_bytes,
    .forward = forward,
    .backward = backward,
};
static const dt_op_set *const operators[] = {&gdn};

static const dt_provider provider = {
    .abi = DT_PROVIDER_ABI,
    .struct_size = sizeof(dt_provider),
    .name = "minimal",
    .version = "1.0",
    .build_id = __DATE__,
    .device = DT_DEVICE_CPU,
    .priority = 50, /* between reference (0) and cpu (100): used when asked for */
    .ops = operators,
    .n_ops = sizeof operators / sizeof *operators,
};

__attribute__((visibility("default"))) const dt_provider *dt_provider_entry(void);

const dt_provider *dt_provider_entry(void)
{
    return &provider;
}
