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

enum {
    GDN_STEP_THREADS = 256,
    GDN_STEP_WARPS = GDN_STEP_THREADS / 32,
    GDN_STEP_COLUMNS = 32,                /* of a block: 8 threads with 4 each */
    GDN_STEP_ROWS = GDN_STEP_THREADS / 8, /* of the state at a time */
    GDN_STEP_MAX_K = 256
};

struct gdn_step_params {
    rows_view q, k, v, g, beta, o;
    float *state; /* [n][value_heads][K][V] by these strides */
    int64_t stream_stride, head_stride, row_stride;
    int32_t value_heads, group, K, V; /* group: value heads of a key head */
    float scale;
    int l2norm;
};
/* to[i] = row[i]; returns this thread's part of the sum of squares. */
DT_DEVICE float gdn_step_load(float *to, const rows_view &from, int64_t at, int K)
{
    float square = 0.0f;
    for (int i = (int)threadIdx.x; i < K; i += GDN_STEP_THREADS) {
        to[i] = rows_get(from, at + i);
        square += to[i] * to[i];
    }
    return square;
}
/* The sums over the block, in a fixed order, of x over the threads that have the same columns. `sums` is written. */
DT_DEVICE void gdn_step_sum(float (&x)[4], float (*sums)[GDN_STEP_COLUMNS])
{
    int lane = (int)threadIdx.x % 32;
    DT_UNROLL
    for (int c = 0; c < 4; c++) {
        x[c] += shuffle_xor(x[c], 8);
        x[c] += shuffle_xor(x[c], 16);
        if (lane < 8)
            sums[threadIdx.x / 32][lane * 4 + c] = x[c];
    }
    block_sync();
    DT_UNROLL
    for (int c = 0; c < 4; c++) {
        x[c] = 0.0f;
        for (int i = 0; i < GDN_STEP_WARPS; i++)
            x[c] += sums[i][lane % 8 * 4 + c];
    }
}
struct gdn_step_shared {
    float read[GDN_STEP_WARPS][GDN_STEP_COLUMNS], out[GDN_STEP_WARPS][GDN_STEP_COLUMNS], squares[2][GDN_STEP_WARPS];
    float q[GDN_STEP_MAX_K], k[GDN_STEP_MAX_K];
};
template <bool VECTORS> DT_DEVICE float4 gdn_step_cells(const float *cells, int columns)
{
    if (VECTORS)
        return columns > 0 ? *(const float4 *)cells : make_float4(0, 0, 0, 0);
    return make_float4(columns > 0 ? cells[0] : 0.0f, columns > 1 ? cells[1] : 0.0f, columns > 2 ? cells[2] : 0.0f,
                       columns > 3 ? cells[3] : 0.0f);
}
/* A block: one stream and value head, 32 columns of its state; a thread has 4 columns of every GDN_STEP_ROWS-th row in
 * registers. VECTORS: the columns are read and written together. */
template <int TURNS, bool VECTORS>
DT_KERNEL(GDN_STEP_THREADS, TURNS > 4 ? 2 : 4)
gdn_step_kernel(const gdn_step_params p)
{
    DT_SHARED(shared);
    gdn_step_shared &m = *(gdn_step_shared *)shared;
    int slices = (p.V + GDN_STEP_COLUMNS - 1) / GDN_STEP_COLUMNS, first_row = (int)threadIdx.x / 8;
    int column = (int)(blockIdx.x % (unsigned)slices) * GDN_STEP_COLUMNS + (int)threadIdx.x % 8 * 4;
    int64_t item = blockIdx.x / (unsigned)slices, n = item / p.value_heads, h = item % p.value_heads;
    float *cells = p.state + n * p.stream_stride + h * p.head_stride + column;
    float state[TURNS][4], read[4] = {0}, out[4] = {0}, v[4];
    DT_UNROLL
    for (int i = 0; i < TURNS; i++) {
        int row = first_row + i * GDN_STEP_ROWS;
        float4 x = gdn_step_cells<VECTORS>(cells + row * p.row_stride, row < p.K ? p.V - column : 0);
        state[i][0] = x.x, state[i][1] = x.y, state[i][2] = x.z, state[i][3] = x.w;
    }
    float decay = expf(rows_get(p.g, n * p.g.row + h)), beta = rows_get(p.beta, n * p.beta.row + h);
    DT_UNROLL
    for (int c = 0; c < 4; c++)
        v[c] = column + c < p.V ? rows_get(p.v, rows_at(p.v, n, h) + column + c) : 0.0f;
    float q_square = gdn_step_load(m.q, p.q, rows_at(p.q, n, h / p.group), p.K);
    float k_square = gdn_step_load(m.k, p.k, rows_at(p.k, n, h / p.group), p.K);
    q_square = rows_warp_sum(q_square);
    k_square = rows_warp_sum(k_square);
    if (threadIdx.x % 32 == 0)
        m.squares[0][threadIdx.x / 32] = q_square, m.squares[1][threadIdx.x / 32] = k_square;
    block_sync();
    q_square = k_square = 1e-6f;
    for (int i = 0; i < GDN_STEP_WARPS; i++)
        q_square += m.squares[0][i], k_square += m.squares[1][i];
    float q_scale = p.scale * (p.l2norm ? 1.0f / sqrtf(q_square) : 1.0f);
    float k_scale = p.l2norm ? 1.0f / sqrtf(k_square) : 1.0f;
    DT_UNROLL
    for (int i = 0; i < TURNS; i++) {
        int row = first_row + i * GDN_STEP_ROWS;
        float k = row < p.K ? m.k[row] * k_scale : 0.0f;
        DT_UNROLL
        for (int c = 0; c < 4; c++) {
            state[i][c] *= decay;
            read[c] += state[i][c] * k;
        }
    }
    gdn_step_sum(read, m.read);
    DT_UNROLL
    for (int i = 0; i < TURNS; i++) {
        int row = first_row + i * GDN_STEP_ROWS;
        float k = row < p.K ? m.k[row] * k_scale : 0.0f, q = row < p.K ? m.q[row] * q_scale : 0.0f;
        float *to = cells + row * p.row_stride;
        DT_UNROLL
        for (int c = 0; c < 4; c++) {
            state[i][c] += k * (beta * (v[c] - read[c]));
            out[c] += state[i][c] * q;
            if (!VECTORS && row < p.K && column + c < p.V)
                to[c] = state[i][c];
        }
        if (VECTORS && row < p.K && column < p.V)
            *(float4 *)to = make_float4(state[i][0], state[i][1], state[i][2], state[i][3]);
    }
    gdn_step_sum(out, m.out);
    DT_UNROLL
    for (int c = 0; c < 4; c++)
        if (first_row == 0 && column + c < p.V)
            rows_set(p.o, rows_at(p.o, n, h) + column + c, out[c]);
}
#endif
