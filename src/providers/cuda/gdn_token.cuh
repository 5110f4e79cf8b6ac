/* The gated delta rule token by token, in fp32: any dtype, any width whose states fit in shared memory, with or without
 * normalisation of q and k. Slow and simple: the checking mode (F32 tensors), and what runs where the chunk kernels'
 * conditions do not hold. A block takes one sample of one value head; thread v owns column v of the state, and thread k
 * row k where sums run over v. */
#ifndef DT_CUDA_GDN_TOKEN_CUH
#define DT_CUDA_GDN_TOKEN_CUH
#include "providers/cuda/elements.cuh"
#include "providers/cuda/gdn_common.cuh"

enum { TOKEN_BLOCKS = 32 }; /* each keeps the states of a chunk's 64 tokens in memory */

struct token_rows { /* a [T, heads, width] tensor */
    void *data;
    int64_t row, head;
    int is_float;
};
struct token_params {
    token_rows q, k, v, o, d_o, dq, dk, dv;
    gdn_scalars g, beta, dg, dbeta;
    const float *initial_state, *dfinal_state;
    float *final_state, *dinitial_state;
    int32_t n_seq, heads, value_heads, group, K, V, l2norm;
    int64_t T_cap;
    float scale;
    gdn_table table;
    float *states;      /* [chunk][Hv][K][V] at the start of each chunk; NULL: not kept */
    float *history;     /* [block][64][K][V] */
    float *dq_h, *dk_h; /* [T_cap][Hv][K] gradients of the normalised q and k, per value head */
};

DT_DEVICE float row_element(const token_rows &t, int64_t row, int head, int i)
{
    return load_element(t.data, t.is_float, row * t.row + head * t.head + i);
}
DT_DEVICE void set_row_element(const token_rows &t, int64_t row, int head, int i, float x)
{
    store_element(t.data, t.is_float, row * t.row + head * t.head + i, x);
}

/* Shared memory of a block. */
struct token_shared {
    float *s, *ds;                             /* [K][V+1] each */
    float *q, *k, *v, *d_o, *u, *du, *e, *sum; /* vectors */
};
DT_DEVICE int token_stride(const token_params &p)
{
    return p.V + 1;
}
DT_DEVICE token_shared token_layout(float *shared, const token_params &p, bool backward)
{
    int width = p.K > p.V ? p.K : p.V, state = p.K * token_stride(p);
    token_shared m;
    m.s = shared;
    m.ds = shared + (backward ? state : 0);
    float *at = m.ds + state;
    m.q = at, m.k = at + width, m.v = at + 2 * width, m.d_o = at + 3 * width;
    m.u = at + 4 * width, m.du = at + 5 * width, m.e = at + 6 * width, m.sum = at + 7 * width;
    return m;
}

/* q and k of a token, normalised if asked, and v. Ends with a barrier. */
DT_DEVICE void token_load(const token_shared &m, const token_params &p, int64_t row, int head)
{
    int thread = (int)threadIdx.x, key_head = head / p.group;
    block_sync();
    if (thread < p.K) {
        m.q[thread] = row_element(p.q, row, key_head, thread);
        m.k[thread] = row_element(p.k, row, key_head, thread);
    }
    if (thread < p.V)
        m.v[thread] = row_element(p.v, row, head, thread);
    block_sync();
    float q = 0.0f, k = 0.0f;
    for (int i = 0; i < p.K; i++) {
        q += m.q[i] * m.q[i];
        k += m.k[i] * m.k[i];
    }
    block_sync();
    if (p.l2norm && thread < p.K) {
        m.q[thread] /= sqrtf(q + 1e-6f);
        m.k[thread] /= sqrtf(k + 1e-6f);
    }
    block_sync();
}
/* Column v one token on; returns the error e = v - a S^T k. */
DT_DEVICE float token_step(const token_shared &m, const token_params &p, float a, float beta, int v)
{
    int stride = token_stride(p);
    float e = m.v[v];
    for (int k = 0; k < p.K; k++) {
        m.s[k * stride + v] *= a;
        e -= m.s[k * stride + v] * m.k[k];
    }
    for (int k = 0; k < p.K; k++)
        m.s[k * stride + v] += m.k[k] * (beta * e);
    return e;
}
DT_DEVICE void token_copy_state(float *to, int to_stride, const float *from, int from_stride, const token_params &p)
{
    if ((int)threadIdx.x < p.V)
        for (int k = 0; k < p.K; k++)
            to[k * to_stride + threadIdx.x] = from ? from[k * from_stride + threadIdx.x] : 0.0f;
}

DT_DEVICE void token_forward_chain(const token_params &p, const token_shared &m, const int4 &chain, int head)
{
    int64_t size = (int64_t)p.K * p.V, state = ((int64_t)chain.z * p.value_heads + head) * size;
    int stride = token_stride(p), v = (int)threadIdx.x;
    token_copy_state(m.s, stride, p.initial_state ? p.initial_state + state : NULL, p.V, p);
    for (int t = 0; t < chain.y; t++) {
        int64_t row = chain.x + t;
        if (t % CHUNK == 0 && p.states)
            token_copy_state(p.states + ((int64_t)(chain.w + t / CHUNK) * p.value_heads + head) * size, p.V, m.s,
                             stride, p);
        token_load(m, p, row, head);
        if (v < p.V) {
            token_step(m, p, expf(p.g.data[row * p.g.row + head]), p.beta.data[row * p.beta.row + head], v);
            float o = 0.0f;
            for (int k = 0; k < p.K; k++)
                o += m.s[k * stride + v] * m.q[k];
            set_row_element(p.o, row, head, v, p.scale * o);
        }
    }
    if (p.final_state && chain.z < p.n_seq)
        token_copy_state(p.final_state + state, p.V, m.s, stride, p);
}
DT_DEVICE void token_clear(const token_rows &t, const token_params &p, int heads, int width)
{
    int64_t T = p.table.counts[3], n = (p.T_cap - T) * heads * width, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        set_row_element(t, T + i / width / heads, (int)(i / width % heads), (int)(i % width), 0.0f);
}
DT_KERNEL(1024, 1) gdn_token_forward_kernel(DT_GRID_CONSTANT token_params p)
{
    DT_SHARED(shared);
    token_shared m = token_layout((float *)shared, p, false);
    for (int i = (int)blockIdx.x; i < p.table.counts[2] * p.value_heads; i += (int)gridDim.x)
        token_forward_chain(p, m, p.table.chain[i / p.value_heads], i % p.value_heads);
    token_clear(p.o, p, p.value_heads, p.V);
}

/* The sum over the block of m.sum[0 .. V-1], the same order always. By one thread. */
DT_DEVICE float token_sum(const float *x, int n)
{
    float sum = 0.0f;
    for (int i = 0; i < n; i++)
        sum += x[i];
    return sum;
}
/* Gradients of one token. before, after: the states around it. dS (in m.ds) goes from after the token to before it. */
DT_DEVICE void token_gradient(const token_params &p, const token_shared &m, int64_t row, int head, const float *before,
                              const float *after)
{
    int thread = (int)threadIdx.x, stride = token_stride(p);
    float a = expf(p.g.data[row * p.g.row + head]), beta = p.beta.data[row * p.beta.row + head];
    token_load(m, p, row, head);
    if (thread < p.V) {
        float d_o = row_element(p.d_o, row, head, thread), du = 0.0f, e = m.v[thread];
        m.d_o[thread] = d_o;
        for (int k = 0; k < p.K; k++) {
            m.ds[k * stride + thread] += p.scale * m.q[k] * d_o;
            du += m.ds[k * stride + thread] * m.k[k];
            e -= a * before[k * p.V + thread] * m.k[k];
        }
        m.u[thread] = beta * e;
        m.du[thread] = du;
        m.sum[thread] = du * e;
        set_row_element(p.dv, row, head, thread, beta * du);
    }
    block_sync();
    if (thread == 0)
        p.dbeta.data[row * p.dbeta.row + head] = token_sum(m.sum, p.V);
    if (thread < p.K) {
        float dq = 0.0f, dk = 0.0f;
        for (int v = 0; v < p.V; v++) {
            dq += after[thread * p.V + v] * m.d_o[v];
            dk += m.ds[thread * stride + v] * m.u[v] - beta * a * before[thread * p.V + v] * m.du[v];
        }
        int64_t at = (row * p.value_heads + head) * p.K + thread;
        p.dq_h[at] = p.scale * dq;
        p.dk_h[at] = dk;
    }
    block_sync();
    if (thread < p.V) {
        float sum = 0.0f, x = beta * m.du[thread];
        for (int k = 0; k < p.K; k++) {
            float d = m.ds[k * stride + thread] - m.k[k] * x;
            sum += before[k * p.V + thread] * d;
            m.ds[k * stride + thread] = a * d;
        }
        m.sum[thread] = sum;
    }
    block_sync();
    if (thread == 0)
        p.dg.data[row * p.dg.row + head] = a * token_sum(m.sum, p.V);
}
DT_DEVICE void token_backward_chain(const token_params &p, const token_shared &m, const int4 &chain, int head)
{
    int64_t size = (int64_t)p.K * p.V, state = ((int64_t)chain.z * p.value_heads + head) * size;
    int stride = token_stride(p);
    float *history = p.history + (int64_t)blockIdx.x * CHUNK * size;
    block_sync();
    token_copy_state(m.ds, stride, p.dfinal_state ? p.dfinal_state + state : NULL, p.V, p);
    for (int c = chunk_count(chain.y) - 1; c >= 0; c--) {
        const float *start = p.states + ((int64_t)(chain.w + c) * p.value_heads + head) * size;
        int64_t row0 = chain.x + c * CHUNK;
        int rows = chain.y - c * CHUNK < CHUNK ? chain.y - c * CHUNK : CHUNK;
        token_copy_state(m.s, stride, start, p.V, p);
        for (int t = 0; t < rows; t++) { /* the states of this chunk once more */
            token_load(m, p, row0 + t, head);
            if ((int)threadIdx.x < p.V)
                token_step(m, p, expf(p.g.data[(row0 + t) * p.g.row + head]),
                           p.beta.data[(row0 + t) * p.beta.row + head], (int)threadIdx.x);
            token_copy_state(history + t * size, p.V, m.s, stride, p);
        }
        block_sync(); /* rows of the history are read by other threads than wrote them */
        for (int t = rows - 1; t >= 0; t--)
            token_gradient(p, m, row0 + t, head, t ? history + (t - 1) * size : start, history + t * size);
    }
    block_sync();
    if (p.dinitial_state && chain.z < p.n_seq)
        token_copy_state(p.dinitial_state + state, p.V, m.ds, stride, p);
}
DT_KERNEL(1024, 1) gdn_token_backward_kernel(DT_GRID_CONSTANT token_params p)
{
    DT_SHARED(shared);
    token_shared m = token_layout((float *)shared, p, true);
    for (int i = (int)blockIdx.x; i < p.table.counts[2] * p.value_heads; i += (int)gridDim.x)
        token_backward_chain(p, m, p.table.chain[i / p.value_heads], i % p.value_heads);
    token_clear(p.dv, p, p.value_heads, p.V);
    int64_t T = p.table.counts[3];
    clear_scalars(p.dg, T, p.T_cap, p.value_heads);
    clear_scalars(p.dbeta, T, p.T_cap, p.value_heads);
}
/* dq and dk of a row and key head: the sum over its value heads, through the normalisation. One warp each. */
DT_DEVICE void token_finish_row(const token_rows &out, const token_rows &x, const float *d_h, const token_params &p,
                                int64_t row, int key_head)
{
    int lane = (int)threadIdx.x & 31;
    float square = 0.0f, dot = 0.0f;
    for (int i = lane; i < p.K; i += 32) {
        float d = 0.0f, y = row_element(x, row, key_head, i);
        for (int h = 0; h < p.group; h++)
            d += d_h[(row * p.value_heads + key_head * p.group + h) * p.K + i];
        square += y * y;
        dot += d * y;
    }
    for (int n = 16; n; n /= 2) {
        square += shuffle_xor(square, n);
        dot += shuffle_xor(dot, n);
    }
    float norm = p.l2norm ? 1.0f / sqrtf(square + 1e-6f) : 1.0f;
    for (int i = lane; i < p.K; i += 32) {
        float d = 0.0f, y = row_element(x, row, key_head, i);
        for (int h = 0; h < p.group; h++)
            d += d_h[(row * p.value_heads + key_head * p.group + h) * p.K + i];
        set_row_element(out, row, key_head, i, p.l2norm ? norm * (d - y * norm * norm * dot) : d);
    }
}
DT_KERNEL(256, 1) gdn_token_finish_kernel(DT_GRID_CONSTANT token_params p)
{
    int64_t i = (int64_t)blockIdx.x * 8 + threadIdx.x / 32, row = i / p.heads;
    if (row < p.table.counts[3]) {
        token_finish_row(p.dq, p.q, p.dq_h, p, row, (int)(i % p.heads));
        token_finish_row(p.dk, p.k, p.dk_h, p, row, (int)(i % p.heads));
    }
    token_clear(p.dq, p, p.heads, p.K);
    token_clear(p.dk, p, p.heads, p.K);
}
#endif
