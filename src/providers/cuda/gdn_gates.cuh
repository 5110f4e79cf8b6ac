/* The gates of the delta rule: g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b). A few bytes a token: the time
 * is that of a launch, so there is one kernel for all dtypes and strides. */
#ifndef DT_CUDA_GDN_GATES_CUH
#define DT_CUDA_GDN_GATES_CUH
#include "providers/cuda/rows.cuh"

enum { GDN_GATES_COLUMNS = 32, GDN_GATES_ROWS = ROWS_THREADS / GDN_GATES_COLUMNS }; /* heads x tokens of a block */

struct gdn_gates_params {
    rows_view a, b, A_log, dt_bias, g, beta, dg, dbeta, da, db;
    float *partial; /* [runs][2][heads]: dA_log, ddt_bias; NULL: neither */
    int64_t T, T_cap, run;
    int32_t heads;
};
DT_DEVICE float gdn_gates_softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}
DT_DEVICE float gdn_gates_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

DT_KERNEL(ROWS_THREADS, 1) gdn_gates_forward_kernel(const gdn_gates_params p)
{
    int chunks = (p.heads + GDN_GATES_COLUMNS - 1) / GDN_GATES_COLUMNS, chunk = (int)(blockIdx.x % (unsigned)chunks);
    int64_t t = (int64_t)(blockIdx.x / (unsigned)chunks) * GDN_GATES_ROWS + threadIdx.x / GDN_GATES_COLUMNS;
    int h = chunk * GDN_GATES_COLUMNS + (int)threadIdx.x % GDN_GATES_COLUMNS;
    if (t >= p.T_cap || h >= p.heads)
        return;
    float g = 0.0f, beta = 0.0f;
    if (t < p.T) {
        float x = rows_get(p.a, t * p.a.row + h) + rows_get(p.dt_bias, h);
        g = -expf(rows_get(p.A_log, h)) * gdn_gates_softplus(x);
        beta = gdn_gates_sigmoid(rows_get(p.b, t * p.b.row + h));
    }
    rows_set(p.g, t * p.g.row + h, g);
    rows_set(p.beta, t * p.beta.row + h, beta);
}

/* da, db of one element; adds what it gives to dA_log and ddt_bias. */
DT_DEVICE void gdn_gates_gradient(const gdn_gates_params &p, int64_t t, int h, float &dA_log, float &ddt_bias)
{
    float da = 0.0f, db = 0.0f;
    if (t < p.T) {
        float x = rows_get(p.a, t * p.a.row + h) + rows_get(p.dt_bias, h), rate = expf(rows_get(p.A_log, h));
        float beta = gdn_gates_sigmoid(rows_get(p.b, t * p.b.row + h)), dg = rows_get(p.dg, t * p.dg.row + h);
        da = -rate * (x > 20.0f ? 1.0f : gdn_gates_sigmoid(x)) * dg;
        db = rows_get(p.dbeta, t * p.dbeta.row + h) * beta * (1.0f - beta);
        dA_log -= dg * rate * gdn_gates_softplus(x);
        ddt_bias += da;
    }
    rows_set(p.da, t * p.da.row + h, da);
    rows_set(p.db, t * p.db.row + h, db);
}
/* A block: 32 heads, a run of tokens. */
DT_KERNEL(ROWS_THREADS, 1) gdn_gates_backward_kernel(const gdn_gates_params p)
{
    DT_SHARED(shared);
    float *sums = (float *)shared, dA_log = 0.0f, ddt_bias = 0.0f;
    int chunks = (p.heads + GDN_GATES_COLUMNS - 1) / GDN_GATES_COLUMNS, chunk = (int)(blockIdx.x % (unsigned)chunks);
    int lane = (int)threadIdx.x / GDN_GATES_COLUMNS, column = (int)threadIdx.x % GDN_GATES_COLUMNS;
    int h = chunk * GDN_GATES_COLUMNS + column;
    int64_t run = blockIdx.x / (unsigned)chunks, end = (run + 1) * p.run < p.T_cap ? (run + 1) * p.run : p.T_cap;
    for (int64_t t = run * p.run + lane; t < end && h < p.heads; t += GDN_GATES_ROWS)
        gdn_gates_gradient(p, t, h, dA_log, ddt_bias);
    if (!p.partial)
        return;
    sums[threadIdx.x] = dA_log;
    sums[ROWS_THREADS + threadIdx.x] = ddt_bias;
    block_sync();
    if (lane != 0 || h >= p.heads)
        return;
    for (int k = 1; k < GDN_GATES_ROWS; k++) {
        dA_log += sums[k * GDN_GATES_COLUMNS + column];
        ddt_bias += sums[ROWS_THREADS + k * GDN_GATES_COLUMNS + column];
    }
    p.partial[(2 * run) * p.heads + h] = dA_log;
    p.partial[(2 * run + 1) * p.heads + h] = ddt_bias;
}
#endif
