/* RMS normalisation of rows. With n = x r, r = rsqrt(mean x^2 + eps), w the weight (plus 1 when zero-centred):
 *     y = n w;   dx = residual + r (dy w - n mean(dy w n));   dweight = sum dy n
 * Both sums of backward come from one look at the row, so nothing is saved from forward.
 *
 * fast kernels: a team of threads holds a row in registers, 8 columns x VECS a thread; rows of up to 256 columns have
 * part of a warp, several at a time, wider ones a block. plain kernels: a warp for a row. */
#ifndef DT_CUDA_RMS_NORM_CUH
#define DT_CUDA_RMS_NORM_CUH
#include "providers/cuda/rows.cuh"

struct rms_norm_params {
    rows_view x, y, weight, dy, dx, residual;
    float *partial;          /* [runs][width], or NULL: no dweight */
    int64_t rows, used, run; /* rows are T_cap * heads, T * heads of them used; `run` of them a block (backward) */
    int32_t heads, width;
    float eps;
    int zero_centered;
};

/* ---------------------------------------------------------------- fast */

struct rms_norm_row {
    int64_t t, h;
    bool used, inside;
};
DT_DEVICE rms_norm_row rms_norm_locate(const rms_norm_params &p, int64_t row, int64_t end)
{
    rms_norm_row at;
    at.inside = row < end;
    at.used = row < end && row < p.used;
    at.t = p.heads == 1 ? row : (int64_t)((uint32_t)row / (uint32_t)p.heads);
    at.h = p.heads == 1 ? 0 : row - at.t * p.heads;
    return at;
}
template <int TEAM> DT_DEVICE int rms_norm_column(int vec)
{
    return ((int)threadIdx.x % TEAM + vec * TEAM) * 8;
}
template <int TEAM, int VECS>
DT_DEVICE void rms_norm_load(uint4 (&x)[VECS], const rows_view &from, const rms_norm_row &at, int width)
{
    DT_UNROLL
    for (int v = 0; v < VECS; v++) {
        int column = rms_norm_column<TEAM>(v);
        x[v] = at.used && column < width && from.data ? rows_load8(from, rows_at(from, at.t, at.h) + column)
                                                      : make_uint4(0, 0, 0, 0);
    }
}
template <int TEAM, int VECS> DT_DEVICE void rms_norm_weight(float (&w)[VECS][8], const rms_norm_params &p)
{
    DT_UNROLL
    for (int v = 0; v < VECS; v++) {
        int column = rms_norm_column<TEAM>(v);
        DT_UNROLL
        for (int c = 0; c < 8; c++)
            w[v][c] = 0.0f;
        if (column < p.width)
            rows_weight8(w[v], p.weight, column);
        DT_UNROLL
        for (int c = 0; c < 8; c++)
            w[v][c] += p.zero_centered ? 1.0f : 0.0f;
    }
}

/* ROWS rows a team at once. */
template <int TEAM, int VECS, int ROWS> DT_KERNEL(ROWS_THREADS, 1) rms_norm_forward_kernel(const rms_norm_params p)
{
    enum { TEAMS = ROWS_THREADS / TEAM };
    DT_SHARED(shared);
    int64_t first = (int64_t)blockIdx.x * (TEAMS * ROWS) + (int)threadIdx.x / TEAM;
    rms_norm_row at[ROWS];
    uint4 x[ROWS][VECS];
    float w[VECS][8], square[ROWS];
    if (TEAM == ROWS_THREADS) /* measured: wide rows are faster when the weight is loaded first, narrow ones last */
        rms_norm_weight<TEAM>(w, p);
    DT_UNROLL
    for (int i = 0; i < ROWS; i++) {
        at[i] = rms_norm_locate(p, first + i * TEAMS, p.rows);
        rms_norm_load<TEAM>(x[i], p.x, at[i], p.width);
    }
    if (TEAM < ROWS_THREADS)
        rms_norm_weight<TEAM>(w, p);
    DT_UNROLL
    for (int i = 0; i < ROWS; i++) {
        square[i] = 0.0f;
        DT_UNROLL
        for (int v = 0; v < VECS; v++) {
            float e[8];
            unpack8(e, x[i][v]);
            DT_UNROLL
            for (int c = 0; c < 8; c++)
                square[i] += e[c] * e[c];
            forget(x[i][v]);
        }
    }
    rows_team_sum<TEAM>(square, (float *)shared);
    DT_UNROLL
    for (int i = 0; i < ROWS; i++) {
        float r = rsqrtf(square[i] / (float)p.width + p.eps);
        DT_UNROLL
        for (int v = 0; v < VECS; v++) {
            int column = rms_norm_column<TEAM>(v);
            float e[8];
            unpack8(e, x[i][v]);
            DT_UNROLL
            for (int c = 0; c < 8; c++)
                e[c] = e[c] * r * w[v][c];
            if (at[i].inside && column < p.width)
                rows_store8(p.y, rows_at(p.y, at[i].t, at[i].h) + column, e);
        }
    }
}

/* This block's part of dweight. */
template <int TEAM, int VECS>
DT_DEVICE void rms_norm_store_columns(float *to, const float (&dw)[VECS][8], float *shared, int width)
{
    if constexpr (TEAM < ROWS_THREADS) {
        rows_store_columns<TEAM>(to, dw[0], shared, width);
    } else {
        DT_UNROLL
        for (int v = 0; v < VECS; v++) {
            int column = rms_norm_column<TEAM>(v);
            if (column < width) {
                *(float4 *)(to + column) = make_float4(dw[v][0], dw[v][1], dw[v][2], dw[v][3]);
                *(float4 *)(to + column + 4) = make_float4(dw[v][4], dw[v][5], dw[v][6], dw[v][7]);
            }
        }
    }
}
/* What a team holds of one row. */
template <int VECS> struct rms_norm_gradient_row {
    rms_norm_row at;
    uint4 x[VECS], dy[VECS], residual[VECS];
};
template <int TEAM, int VECS>
DT_DEVICE void rms_norm_load_row(rms_norm_gradient_row<VECS> &row, const rms_norm_params &p, int64_t first, int64_t end)
{
    row.at = rms_norm_locate(p, first + (int)threadIdx.x / TEAM, end);
    rms_norm_load<TEAM>(row.x, p.x, row.at, p.width);
    rms_norm_load<TEAM>(row.dy, p.dy, row.at, p.width);
    rms_norm_load<TEAM>(row.residual, p.residual, row.at, p.width);
}
/* The rows of one run. The widths of most models leave registers for five blocks a multiprocessor (with dweight four).
 */
template <int TEAM, int VECS, bool WEIGHTS>
DT_KERNEL(ROWS_THREADS, (TEAM == ROWS_THREADS && VECS <= 3 ? (WEIGHTS ? 4 : 5) : 1))
rms_norm_backward_kernel(const rms_norm_params p)
{
    DT_SHARED(shared);
    int64_t first = (int64_t)blockIdx.x * p.run, end = first + p.run < p.rows ? first + p.run : p.rows;
    rms_norm_gradient_row<VECS> row;
    float w[VECS][8], dw[WEIGHTS ? VECS : 1][8] = {{0}};
    rms_norm_load_row<TEAM>(row, p, first, end);
    rms_norm_weight<TEAM>(w, p);
    for (int turn = 0; first < end; turn ^= 1) {
        float sum[2] = {0}; /* of x^2 and of dy w x */
        DT_UNROLL
        for (int v = 0; v < VECS; v++) {
            float e[8], d[8];
            unpack8(e, row.x[v]);
            unpack8(d, row.dy[v]);
            DT_UNROLL
            for (int c = 0; c < 8; c++) {
                sum[0] += e[c] * e[c];
                sum[1] += d[c] * w[v][c] * e[c];
            }
            forget(row.x[v]);
            forget(row.dy[v]);
        }
        rows_team_sum<TEAM>(sum, (float *)shared + turn * 8);
        float r = rsqrtf(sum[0] / (float)p.width + p.eps), back = r * r * r * sum[1] / (float)p.width;
        DT_UNROLL
        for (int v = 0; v < VECS; v++) {
            int column = rms_norm_column<TEAM>(v);
            float e[8], d[8], out[8];
            unpack8(e, row.x[v]);
            unpack8(d, row.dy[v]);
            unpack8(out, row.residual[v]);
            DT_UNROLL
            for (int c = 0; c < 8; c++) {
                out[c] += r * d[c] * w[v][c] - back * e[c];
                if (WEIGHTS)
                    dw[WEIGHTS ? v : 0][c] += d[c] * e[c] * r;
            }
            if (row.at.inside && column < p.width)
                rows_store8(p.dx, rows_at(p.dx, row.at.t, row.at.h) + column, out);
        }
        first += ROWS_THREADS / TEAM;
        if (first < end)
            rms_norm_load_row<TEAM>(row, p, first, end);
    }
    if constexpr (WEIGHTS)
        rms_norm_store_columns<TEAM>(p.partial + (int64_t)blockIdx.x * p.width, dw, (float *)shared + 64, p.width);
}

/* ---------------------------------------------------------------- plain */

DT_DEVICE float rms_norm_factor(const rms_norm_params &p, int i)
{
    return rows_get(p.weight, i) + (p.zero_centered ? 1.0f : 0.0f);
}
DT_KERNEL(ROWS_THREADS, 1) rms_norm_plain_forward_kernel(const rms_norm_params p)
{
    int64_t row = (int64_t)blockIdx.x * (ROWS_THREADS / 32) + threadIdx.x / 32, t = row / p.heads, h = row % p.heads;
    int64_t x = rows_at(p.x, t, h), y = rows_at(p.y, t, h);
    int lane = (int)threadIdx.x % 32;
    float square = 0.0f;
    if (row >= p.rows)
        return;
    for (int i = lane; i < p.width && row < p.used; i += 32)
        square += rows_get(p.x, x + i) * rows_get(p.x, x + i);
    float r = 1.0f / sqrtf(rows_warp_sum(square) / (float)p.width + p.eps);
    for (int i = lane; i < p.width; i += 32)
        rows_set(p.y, y + i, row < p.used ? rows_get(p.x, x + i) * r * rms_norm_factor(p, i) : 0.0f);
}
DT_DEVICE void rms_norm_plain_backward_row(const rms_norm_params &p, int64_t row, float *partial)
{
    int64_t t = row / p.heads, h = row % p.heads, dx = rows_at(p.dx, t, h);
    int64_t x = rows_at(p.x, t, h), dy = rows_at(p.dy, t, h), residual = rows_at(p.residual, t, h);
    int lane = (int)threadIdx.x % 32;
    float square = 0.0f, dot = 0.0f;
    for (int i = lane; i < p.width && row < p.used; i += 32) {
        float e = rows_get(p.x, x + i);
        square += e * e;
        dot += rows_get(p.dy, dy + i) * rms_norm_factor(p, i) * e;
    }
    float r = 1.0f / sqrtf(rows_warp_sum(square) / (float)p.width + p.eps);
    float mean = r * rows_warp_sum(dot) / (float)p.width;
    for (int i = lane; i < p.width; i += 32) {
        float out = 0.0f;
        if (row < p.used) {
            float n = rows_get(p.x, x + i) * r, d = rows_get(p.dy, dy + i);
            out = (p.residual.data ? rows_get(p.residual, residual + i) : 0.0f) +
                  r * (d * rms_norm_factor(p, i) - n * mean);
            if (partial)
                partial[i] += d * n;
        }
        rows_set(p.dx, dx + i, out);
    }
}
/* A warp for a run. */
DT_KERNEL(ROWS_THREADS, 1) rms_norm_plain_backward_kernel(const rms_norm_params p)
{
    int64_t run = (int64_t)blockIdx.x * (ROWS_THREADS / 32) + threadIdx.x / 32, first = run * p.run;
    float *partial = p.partial ? p.partial + run * p.width : NULL;
    for (int i = (int)threadIdx.x % 32; i < p.width && partial && first < p.rows; i += 32)
        partial[i] = 0.0f;
    for (int64_t row = first; row < first + p.run && row < p.rows; row++)
        rms_norm_plain_backward_row(p, row, partial);
}
#endif
