/* Gated RMS normalisation of rows. With n = x r, r = rsqrt(mean x^2 + eps), s = sigmoid(z):
 *     y = n w z s;   dx = r (w dn - n mean(w dn n)), dn = dy z s;   dz = dy n w s (1 + z (1 - s));   dweight = sum dn n
 * fast kernels: part of a warp holds a row of up to 256 columns, 8 a thread. plain kernels: a warp for a row. */
#ifndef DT_CUDA_RMS_NORM_GATED_CUH
#define DT_CUDA_RMS_NORM_GATED_CUH
#include "providers/cuda/rows.cuh"

struct gated_norm_params {
    rows_view x, z, y, weight, dy, dx, dz;
    float *partial;          /* [runs][width], or NULL: no dweight */
    int64_t rows, used, run; /* rows are T_cap * heads, T * heads of them used; `run` of them a block (backward) */
    int32_t heads, width;
    float eps;
};
struct gated_norm_row {
    int64_t t, h;
    bool used, inside; /* inside: this thread has columns of it */
};
DT_DEVICE gated_norm_row gated_norm_locate(const gated_norm_params &p, int64_t row, int64_t end, int column)
{
    gated_norm_row at;
    at.inside = row < end && column < p.width;
    at.used = at.inside && row < p.used;
    at.t = (int64_t)((uint32_t)row / (uint32_t)p.heads);
    at.h = row - at.t * p.heads;
    return at;
}
DT_DEVICE uint4 gated_norm_load(const rows_view &from, const gated_norm_row &at, int column)
{
    return at.used ? rows_load8(from, rows_at(from, at.t, at.h) + column) : make_uint4(0, 0, 0, 0);
}

/* ---------------------------------------------------------------- fast */

/* ROWS rows a team at once. */
template <int TEAM, int ROWS> DT_KERNEL(ROWS_THREADS, 1) gated_norm_forward_kernel(const gated_norm_params p)
{
    enum { TEAMS = ROWS_THREADS / TEAM };
    int column = (int)threadIdx.x % TEAM * 8;
    int64_t first = (int64_t)blockIdx.x * (TEAMS * ROWS) + (int)threadIdx.x / TEAM;
    gated_norm_row at[ROWS];
    uint4 x[ROWS], z[ROWS];
    float w[8] = {0}, square[ROWS];
    DT_UNROLL
    for (int i = 0; i < ROWS; i++) {
        at[i] = gated_norm_locate(p, first + i * TEAMS, p.rows, column);
        x[i] = gated_norm_load(p.x, at[i], column);
        z[i] = gated_norm_load(p.z, at[i], column);
    }
    if (column < p.width)
        rows_weight8(w, p.weight, column);
    DT_UNROLL
    for (int i = 0; i < ROWS; i++) {
        float e[8];
        unpack8(e, x[i]);
        square[i] = 0.0f;
        DT_UNROLL
        for (int c = 0; c < 8; c++)
            square[i] += e[c] * e[c];
        forget(x[i]);
    }
    rows_team_sum<TEAM>(square, (float *)0);
    DT_UNROLL
    for (int i = 0; i < ROWS; i++) {
        float e[8], gate[8], r = rsqrtf(square[i] / (float)p.width + p.eps);
        unpack8(e, x[i]);
        unpack8(gate, z[i]);
        DT_UNROLL
        for (int c = 0; c < 8; c++)
            e[c] = e[c] * r * w[c] * (gate[c] * sigmoid_fast(gate[c]));
        if (at[i].inside)
            rows_store8(p.y, rows_at(p.y, at[i].t, at[i].h) + column, e);
    }
}

struct gated_norm_gradient_row { /* what a thread holds of one row */
    gated_norm_row at;
    uint4 x, z, dy;
};
template <int TEAM>
DT_DEVICE gated_norm_gradient_row gated_norm_load_row(const gated_norm_params &p, int64_t first, int64_t end,
                                                      int column)
{
    gated_norm_gradient_row row;
    row.at = gated_norm_locate(p, first + (int)threadIdx.x / TEAM, end, column);
    row.x = gated_norm_load(p.x, row.at, column);
    row.z = gated_norm_load(p.z, row.at, column);
    row.dy = gated_norm_load(p.dy, row.at, column);
    return row;
}
/* The rows of one run. */
template <int TEAM, bool WEIGHTS> DT_KERNEL(ROWS_THREADS, 1) gated_norm_backward_kernel(const gated_norm_params p)
{
    DT_SHARED(shared);
    int column = (int)threadIdx.x % TEAM * 8;
    int64_t first = (int64_t)blockIdx.x * p.run, end = first + p.run < p.rows ? first + p.run : p.rows;
    float w[8] = {0}, dw[8] = {0};
    if (column < p.width)
        rows_weight8(w, p.weight, column);
    for (; first < end; first += ROWS_THREADS / TEAM) {
        gated_norm_gradient_row row = gated_norm_load_row<TEAM>(p, first, end, column);
        float e[8], gate[8], d[8], dn[8], dz[8], sum[2] = {0}; /* sums of x^2 and of x w dn; dz still without r */
        unpack8(e, row.x);
        unpack8(gate, row.z);
        unpack8(d, row.dy);
        DT_UNROLL
        for (int c = 0; c < 8; c++) {
            float s = sigmoid_fast(gate[c]), silu = gate[c] * s;
            dn[c] = d[c] * silu;
            dz[c] = d[c] * e[c] * w[c] * (s + silu - silu * s);
            sum[0] += e[c] * e[c];
            sum[1] += e[c] * w[c] * dn[c];
        }
        rows_team_sum<TEAM>(sum, (float *)0);
        float r = rsqrtf(sum[0] / (float)p.width + p.eps), back = r * r * r * sum[1] / (float)p.width;
        DT_UNROLL
        for (int c = 0; c < 8; c++) {
            if (WEIGHTS)
                dw[c] += dn[c] * e[c] * r;
            e[c] = r * w[c] * dn[c] - back * e[c];
            dz[c] *= r;
        }
        if (row.at.inside) {
            rows_store8(p.dx, rows_at(p.dx, row.at.t, row.at.h) + column, e);
            rows_store8(p.dz, rows_at(p.dz, row.at.t, row.at.h) + column, dz);
        }
    }
    if (WEIGHTS)
        rows_store_columns<TEAM>(p.partial + (int64_t)blockIdx.x * p.width, dw, (float *)shared, p.width);
}

/* ---------------------------------------------------------------- plain */

DT_DEVICE float gated_norm_plain_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}
DT_KERNEL(ROWS_THREADS, 1) gated_norm_plain_forward_kernel(const gated_norm_params p)
{
    int64_t row = (int64_t)blockIdx.x * (ROWS_THREADS / 32) + threadIdx.x / 32, t = row / p.heads, h = row % p.heads;
    int64_t x = rows_at(p.x, t, h), z = rows_at(p.z, t, h), y = rows_at(p.y, t, h);
    int lane = (int)threadIdx.x % 32;
    float square = 0.0f;
    if (row >= p.rows)
        return;
    for (int i = lane; i < p.width && row < p.used; i += 32)
        square += rows_get(p.x, x + i) * rows_get(p.x, x + i);
    float r = 1.0f / sqrtf(rows_warp_sum(square) / (float)p.width + p.eps);
    for (int i = lane; i < p.width; i += 32) {
        float out = 0.0f;
        if (row < p.used) {
            float gate = rows_get(p.z, z + i);
            out = rows_get(p.x, x + i) * r * rows_get(p.weight, i) * (gate * gated_norm_plain_sigmoid(gate));
        }
        rows_set(p.y, y + i, out);
    }
}
DT_DEVICE void gated_norm_plain_backward_row(const gated_norm_params &p, int64_t row, float *partial)
{
    int64_t t = row / p.heads, h = row % p.heads, x = rows_at(p.x, t, h), z = rows_at(p.z, t, h);
    int64_t dy = rows_at(p.dy, t, h), dx = rows_at(p.dx, t, h), dz = rows_at(p.dz, t, h);
    int lane = (int)threadIdx.x % 32;
    float square = 0.0f, dot = 0.0f;
    for (int i = lane; i < p.width && row < p.used; i += 32) {
        float e = rows_get(p.x, x + i), gate = rows_get(p.z, z + i);
        square += e * e;
        dot += e * rows_get(p.weight, i) * (rows_get(p.dy, dy + i) * gate * gated_norm_plain_sigmoid(gate));
    }
    float r = 1.0f / sqrtf(rows_warp_sum(square) / (float)p.width + p.eps);
    float mean = r * rows_warp_sum(dot) / (float)p.width;
    for (int i = lane; i < p.width; i += 32) {
        float out = 0.0f, out_z = 0.0f;
        if (row < p.used) {
            float gate = rows_get(p.z, z + i), s = gated_norm_plain_sigmoid(gate), d = rows_get(p.dy, dy + i);
            float n = rows_get(p.x, x + i) * r, w = rows_get(p.weight, i), dn = d * gate * s;
            out = r * (w * dn - n * mean);
            out_z = d * n * w * (s * (1.0f + gate * (1.0f - s)));
            if (partial)
                partial[i] += dn * n;
        }
        rows_set(p.dx, dx + i, out);
        rows_set(p.dz, dz + i, out_z);
    }
}
/* A warp for a run. */
DT_KERNEL(ROWS_THREADS, 1) gated_norm_plain_backward_kernel(const gated_norm_params p)
{
    int64_t run = (int64_t)blockIdx.x * (ROWS_THREADS / 32) + threadIdx.x / 32, first = run * p.run;
    float *partial = p.partial ? p.partial + run * p.width : NULL;
    for (int i = (int)threadIdx.x % 32; i < p.width && partial && first < p.rows; i += 32)
        partial[i] = 0.0f;
    for (int64_t row = first; row < first + p.run && row < p.rows; row++)
        gated_norm_plain_backward_row(p, row, partial);
}
#endif
