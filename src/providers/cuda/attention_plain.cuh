/* Attention for every dtype, head size and stride: one block a query row and head (a key row and head), fp32. For
 * checking, and for what the tile kernels do not take. */
#ifndef DT_CUDA_ATTENTION_PLAIN_CUH
#define DT_CUDA_ATTENTION_PLAIN_CUH
#include "providers/cuda/attention_common.cuh"

enum { ATTENTION_PLAIN_THREADS = 128 };

/* Shared memory of a block, in floats: two or three vectors of D, two values a thread, sums of the warps. */
#define ATTENTION_PLAIN_BYTES(D) ((4 * (D) + 2 * ATTENTION_PLAIN_THREADS + 8) * 4)

DT_DEVICE float attention_element(const attention_rows &x, int64_t row, int64_t head, int64_t d)
{
    return load_element(x.data, x.is_float, row * x.row + head * x.head + d);
}
DT_DEVICE float attention_dot(const float *y, const attention_rows &x, int64_t row, int64_t head, int D)
{
    float sum = 0.0f;
    for (int d = 0; d < D; d++)
        sum = fmaf(y[d], attention_element(x, row, head, d), sum);
    return sum;
}
/* The sum or the maximum of x over the block; `scratch` has a float a warp. */
DT_DEVICE float attention_over_block(float x, float *scratch, bool maximum)
{
    for (int n = 16; n > 0; n /= 2) {
        float y = shuffle_xor(x, n);
        x = maximum ? fmaxf(x, y) : x + y;
    }
    block_sync();
    if ((threadIdx.x & 31) == 0)
        scratch[threadIdx.x / 32] = x;
    block_sync();
    float all = scratch[0];
    for (int i = 1; i < ATTENTION_PLAIN_THREADS / 32; i++)
        all = maximum ? fmaxf(all, scratch[i]) : all + scratch[i];
    return all;
}
DT_DEVICE void attention_fetch(float *to, const attention_rows &x, int64_t row, int64_t head, int D)
{
    for (int d = (int)threadIdx.x; d < D; d += ATTENTION_PLAIN_THREADS)
        to[d] = attention_element(x, row, head, d);
}
DT_DEVICE float attention_probability(const attention_params &p, const float *q, float lse, int64_t key_row,
                                      int kv_head)
{
    return exp2f(attention_dot(q, p.k, key_row, kv_head, p.D) * p.scale_log2 - lse);
}
/* The one-token tile of a row: false for rows behind the pack. */
DT_DEVICE bool attention_find_row(attention_tile &t, const attention_params &p, int64_t row)
{
    if (row >= p.q_cu[p.n_seq_cap])
        return false;
    int n = sample_of(p.q_cu, p.n_seq_cap, row);
    t.row0 = p.q_cu[n];
    t.length = p.q_cu[n + 1] - t.row0;
    t.start = (int)(row - t.row0);
    t.key_row0 = p.k_cu[n];
    t.keys = p.k_cu[n + 1] - t.key_row0;
    t.offset = t.keys - t.length;
    return true;
}

DT_KERNEL(ATTENTION_PLAIN_THREADS, 1) attention_plain_forward_kernel(DT_GRID_CONSTANT attention_params p)
{
    DT_SHARED(shared);
    float *q = (float *)shared, *o = q + p.D, *weight = o + p.D, *scratch = weight + ATTENTION_PLAIN_THREADS;
    const int thread = (int)threadIdx.x, head = (int)blockIdx.x % p.heads, kv_head = head / p.group;
    const int64_t row = (int)blockIdx.x / p.heads;
    attention_tile t;
    if (attention_find_row(t, p, row)) {
        const int keys = t.offset + t.start + 1;
        float maximum = -INFINITY, sum = 0.0f;
        attention_fetch(q, p.q, row, head, p.D);
        for (int d = thread; d < p.D; d += ATTENTION_PLAIN_THREADS)
            o[d] = 0.0f;
        block_sync();
        for (int key0 = 0; key0 < keys; key0 += ATTENTION_PLAIN_THREADS) {
            const int key = key0 + thread,
                      count = keys - key0 < ATTENTION_PLAIN_THREADS ? keys - key0 : ATTENTION_PLAIN_THREADS;
            float s =
                key < keys ? attention_dot(q, p.k, (int64_t)t.key_row0 + key, kv_head, p.D) * p.scale_log2 : -INFINITY;
            float m = fmaxf(maximum, attention_over_block(s, scratch, true)), factor = exp2f(maximum - m);
            maximum = m;
            weight[thread] = exp2f(s - m);
            sum = sum * factor + attention_over_block(weight[thread], scratch, false);
            for (int d = thread; d < p.D; d += ATTENTION_PLAIN_THREADS) {
                float x = o[d] * factor;
                for (int j = 0; j < count; j++)
                    x = fmaf(weight[j], attention_element(p.v, (int64_t)t.key_row0 + key0 + j, kv_head, d), x);
                o[d] = x;
            }
            block_sync();
        }
        for (int d = thread; d < p.D; d += ATTENTION_PLAIN_THREADS)
            store_element(p.o.data, p.o.is_float, row * p.o.row + head * p.o.head + d, o[d] / sum);
        if (p.lse && thread == 0)
            p.lse[row * p.heads + head] = maximum + log2f(sum);
    }
    attention_clear(p.o, p.q_cu[p.n_seq_cap], p.T_cap, p.heads, p.D);
}

DT_KERNEL(ATTENTION_PLAIN_THREADS, 1) attention_plain_queries_kernel(DT_GRID_CONSTANT attention_params p)
{
    DT_SHARED(shared);
    float *q = (float *)shared, *d_o = q + p.D, *dq = d_o + p.D, *weight = dq + p.D,
          *scratch = weight + ATTENTION_PLAIN_THREADS;
    const int thread = (int)threadIdx.x, head = (int)blockIdx.x % p.heads, kv_head = head / p.group;
    const int64_t row = (int)blockIdx.x / p.heads;
    attention_tile t;
    if (attention_find_row(t, p, row)) {
        const int keys = t.start + 1;
        const float lse = p.lse[row * p.heads + head];
        float mean = 0.0f;
        attention_fetch(q, p.q, row, head, p.D);
        attention_fetch(d_o, p.d_o, row, head, p.D);
        for (int d = thread; d < p.D; d += ATTENTION_PLAIN_THREADS)
            dq[d] = 0.0f;
        block_sync();
        for (int key = thread; key < keys; key += ATTENTION_PLAIN_THREADS) /* sum do.o, but o may have been rounded */
            mean = fmaf(attention_probability(p, q, lse, t.key_row0 + key, kv_head),
                        attention_dot(d_o, p.v, t.key_row0 + key, kv_head, p.D), mean);
        mean = attention_over_block(mean, scratch, false);
        if (thread == 0)
            p.mean[row * p.heads + head] = mean;
        for (int key0 = 0; key0 < keys; key0 += ATTENTION_PLAIN_THREADS) {
            const int key = key0 + thread,
                      count = keys - key0 < ATTENTION_PLAIN_THREADS ? keys - key0 : ATTENTION_PLAIN_THREADS;
            weight[thread] = 0.0f;
            if (key < keys)
                weight[thread] = attention_probability(p, q, lse, t.key_row0 + key, kv_head) *
                                 (attention_dot(d_o, p.v, t.key_row0 + key, kv_head, p.D) - mean);
            block_sync();
            for (int d = thread; d < p.D; d += ATTENTION_PLAIN_THREADS)
                for (int j = 0; j < count; j++)
                    dq[d] = fmaf(weight[j], attention_element(p.k, (int64_t)t.key_row0 + key0 + j, kv_head, d), dq[d]);
            block_sync();
        }
        for (int d = thread; d < p.D; d += ATTENTION_PLAIN_THREADS)
            store_element(p.dq.data, p.dq.is_float, row * p.dq.row + head * p.dq.head + d, p.scale * dq[d]);
    }
    attention_clear(p.dq, p.q_cu[p.n_seq_cap], p.T_cap, p.heads, p.D);
}

/* Needs the means, so it runs after the kernel above. */
DT_KERNEL(ATTENTION_PLAIN_THREADS, 1) attention_plain_keys_kernel(DT_GRID_CONSTANT attention_params p)
{
    DT_SHARED(shared);
    float *k = (float *)shared, *v = k + p.D, *dk = v + p.D, *dv = dk + p.D, *weight = dv + p.D,
          *gradient = weight + ATTENTION_PLAIN_THREADS;
    const int thread = (int)threadIdx.x, kv_head = (int)blockIdx.x % p.kv_heads;
    const int64_t row = (int)blockIdx.x / p.kv_heads;
    attention_tile t;
    if (attention_find_row(t, p, row)) {
        const int items = (t.length - t.start) * p.group; /* the queries that see this key, in all heads */
        attention_fetch(k, p.k, row, kv_head, p.D);
        attention_fetch(v, p.v, row, kv_head, p.D);
        for (int d = thread; d < p.D; d += ATTENTION_PLAIN_THREADS)
            dk[d] = dv[d] = 0.0f;
        block_sync();
        for (int first = 0; first < items; first += ATTENTION_PLAIN_THREADS) {
            const int item = first + thread,
                      count = items - first < ATTENTION_PLAIN_THREADS ? items - first : ATTENTION_PLAIN_THREADS;
            weight[thread] = gradient[thread] = 0.0f;
            if (item < items) {
                const int64_t query = row + item / p.group;
                const int head = kv_head * p.group + item % p.group;
                const float s = attention_dot(k, p.q, query, head, p.D) * p.scale_log2;
                weight[thread] = exp2f(s - p.lse[query * p.heads + head]);
                gradient[thread] =
                    weight[thread] * (attention_dot(v, p.d_o, query, head, p.D) - p.mean[query * p.heads + head]);
            }
            block_sync();
            for (int d = thread; d < p.D; d += ATTENTION_PLAIN_THREADS)
                for (int j = 0; j < count; j++) {
                    const int64_t query = row + (first + j) / p.group;
                    const int head = kv_head * p.group + (first + j) % p.group;
                    dk[d] = fmaf(gradient[j], attention_element(p.q, query, head, d), dk[d]);
                    dv[d] = fmaf(weight[j], attention_element(p.d_o, query, head, d), dv[d]);
                }
            block_sync();
        }
        for (int d = thread; d < p.D; d += ATTENTION_PLAIN_THREADS) {
            store_element(p.dk.data, p.dk.is_float, row * p.dk.row + kv_head * p.dk.head + d, p.scale * dk[d]);
            store_element(p.dv.data, p.dv.is_float, row * p.dv.row + kv_head * p.dv.head + d, dv[d]);
        }
    }
    attention_clear(p.dk, p.q_cu[p.n_seq_cap], p.T_cap, p.kv_heads, p.D);
    attention_clear(p.dv, p.q_cu[p.n_seq_cap], p.T_cap, p.kv_heads, p.D);
}
#endif
