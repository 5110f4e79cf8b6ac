/* One token of each of n streams: the convolution's and the delta rule's step. Any dtype. */
#ifndef DT_CUDA_DECODE_CUH
#define DT_CUDA_DECODE_CUH
#include "providers/cuda/rows.cuh"

/* ---------------------------------------------------------------- convolution: a thread for a channel */

struct conv_step_params {
    rows_view x, weight, bias, state,
        y; /* weight.row: elements between channels; state: .row streams, .head channels */
    int64_t streams, channels;
    int32_t W, silu;
};
DT_KERNEL(ROWS_THREADS, 1) conv_step_kernel(const conv_step_params p)
{
    int64_t i = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x, n = i / p.channels, c = i % p.channels;
    if (n >= p.streams)
        return;
    float sum = p.bias.data ? rows_get(p.bias, c) : 0.0f;
    int64_t state = rows_at(p.state, n, c);
    for (int j = 0; j < p.W; j++) {
        float x = j + 1 < p.W ? rows_get(p.state, state + j + 1) : rows_get(p.x, n * p.x.row + c);
        sum += rows_get(p.weight, c * p.weight.row + j) * x;
        rows_set(p.state, state + j, x);
    }
    rows_set(p.y, n * p.y.row + c, p.silu ? sum / (1.0f + expf(-sum)) : sum);
}

/* ---------------------------------------------------------------- delta rule */

enum { GDN_STEP_COLUMNS = 32, GDN_STEP_WARPS = 8, GDN_STEP_THREADS = GDN_STEP_COLUMNS * GDN_STEP_WARPS };

struct gdn_step_params {
    rows_view q, k, v, g, beta, o;
    float *state; /* [n][value_heads][K][V] by these strides */
    int64_t stream_stride, head_stride, row_stride;
    int32_t value_heads, group, K, V; /* group: value heads of a key head */
    float scale;
    int l2norm;
};
/* to[i] = row[i], divided by its norm when asked; by all threads. `sums`: GDN_STEP_WARPS floats. */
DT_DEVICE void gdn_step_load(float *to, const rows_view &from, int64_t at, const gdn_step_params &p, float *sums)
{
    float square = 0.0f;
    for (int i = (int)threadIdx.x; i < p.K; i += GDN_STEP_THREADS) {
        to[i] = rows_get(from, at + i);
        square += to[i] * to[i];
    }
    square = rows_warp_sum(square);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = square;
    block_sync();
    square = 1e-6f;
    for (int i = 0; i < GDN_STEP_WARPS; i++)
        square += sums[i];
    for (int i = (int)threadIdx.x; i < p.K && p.l2norm; i += GDN_STEP_THREADS)
        to[i] /= sqrtf(square);
}
/* The sum of x over the warps, in order, for each lane. */
DT_DEVICE float gdn_step_sum(float x, float *sums)
{
    sums[threadIdx.x] = x;
    block_sync();
    x = 0.0f;
    for (int i = 0; i < GDN_STEP_WARPS; i++)
        x += sums[i * 32 + threadIdx.x % 32];
    return x;
}
/* A block: one stream and value head, 32 columns of its state, the rows k = warp + 8 i in registers. */
template <int ROWS> DT_KERNEL(GDN_STEP_THREADS, 1) gdn_step_kernel(const gdn_step_params p)
{
    DT_SHARED(shared);
    float *q = (float *)shared, *k = q + p.K, *sums = k + p.K, state[ROWS], read = 0.0f, out = 0.0f;
    int slices = (p.V + GDN_STEP_COLUMNS - 1) / GDN_STEP_COLUMNS, warp = (int)threadIdx.x / 32;
    int column = (int)(blockIdx.x % (unsigned)slices) * GDN_STEP_COLUMNS + (int)threadIdx.x % 32;
    int64_t item = blockIdx.x / (unsigned)slices, n = item / p.value_heads, h = item % p.value_heads;
    float *cells = p.state + n * p.stream_stride + h * p.head_stride + column;
    DT_UNROLL
    for (int i = 0; i < ROWS; i++) {
        int row = warp + i * GDN_STEP_WARPS;
        state[i] = row < p.K && column < p.V ? cells[row * p.row_stride] : 0.0f;
    }
    gdn_step_load(q, p.q, rows_at(p.q, n, h / p.group), p, sums);
    gdn_step_load(k, p.k, rows_at(p.k, n, h / p.group), p, sums + GDN_STEP_WARPS);
    block_sync();
    float decay = expf(rows_get(p.g, n * p.g.row + h)), beta = rows_get(p.beta, n * p.beta.row + h);
    DT_UNROLL
    for (int i = 0; i < ROWS; i++) {
        int row = warp + i * GDN_STEP_WARPS;
        state[i] *= decay;
        read += row < p.K ? state[i] * k[row] : 0.0f;
    }
    sums += 2 * GDN_STEP_WARPS;
    read = gdn_step_sum(read, sums);
    float u = beta * ((column < p.V ? rows_get(p.v, rows_at(p.v, n, h) + column) : 0.0f) - read);
    DT_UNROLL
    for (int i = 0; i < ROWS; i++) {
        int row = warp + i * GDN_STEP_WARPS;
        if (row < p.K) {
            state[i] += k[row] * u;
            out += state[i] * q[row];
            if (column < p.V)
                cells[row * p.row_stride] = state[i];
        }
    }
    out = gdn_step_sum(out, sums + GDN_STEP_THREADS);
    if (warp == 0 && column < p.V)
        rows_set(p.o, rows_at(p.o, n, h) + column, p.scale * out);
}
#endif
