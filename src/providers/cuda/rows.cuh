/* What the row-wise kernels share: views, vectors of 8 elements, sums over the threads of a row, and the second half of
 * parameter gradients.
 *
 * Each of these operators has fast kernels (bf16, 16-byte vectors) and plain ones (any dtype, any stride, written for
 * clarity). Parameter gradients are summed over runs of rows first, then over the runs in order: no atomics, and how
 * rows fall into runs depends on their number only, so results do not depend on the card. */
#ifndef DT_CUDA_ROWS_CUH
#define DT_CUDA_ROWS_CUH
#include <deltune/tensor.h>

#include "providers/cuda/device.cuh"
#include "providers/cuda/elements.cuh"

enum { ROWS_THREADS = 128, ROWS_RUNS = 1024, ROWS_SHARES = 4096 };

/* A [T,heads,D] or [T,D] tensor, or a [D] one (then only `data` and the dtype count). */
struct rows_view {
    void *data; /* NULL: absent */
    int64_t row, head;
    int is_float;
};

static inline rows_view rows_view_of(const dt_tensor *t)
{
    rows_view v = {t->data, t->stride[0], t->rank == 3 ? t->stride[1] : 0, t->dtype == DT_F32};
    return v;
}
static inline int64_t rows_heads(const dt_tensor *t)
{
    return t->rank == 3 ? t->shape[1] : 1;
}
/* The width of a row: the last dimension. */
static inline int64_t rows_width(const dt_tensor *t)
{
    return t->shape[t->rank - 1];
}
/* Can be read and written in vectors of 8, or is absent. */
static inline bool rows_fast(const dt_tensor *t)
{
    bool strides = t->rank == 1 || (t->stride[0] % 8 == 0 && (t->rank == 2 || t->stride[1] % 8 == 0));
    return !t->data || (t->dtype == DT_BF16 && ((uintptr_t)t->data & 15) == 0 && strides && rows_width(t) % 8 == 0);
}
/* A [D] weight that can be read in vectors: either dtype. */
static inline bool rows_fast_weight(const dt_tensor *t)
{
    return ((uintptr_t)t->data & 15) == 0;
}

/* Runs that `rows` rows are summed in, and the rows of one. */
static inline int64_t rows_runs(int64_t rows)
{
    return dtp_min(ROWS_RUNS, dtp_blocks(rows, 4));
}
static inline int64_t rows_run_length(int64_t rows)
{
    return rows ? dtp_blocks(rows, rows_runs(rows)) : 0;
}
/* Rows of a block that takes `step` rows at a time and leaves no sums behind: several turns where there are blocks
 * enough, which share what a block loads and computes once. */
static inline int64_t rows_share(int64_t rows, int64_t step)
{
    int64_t turns = rows / (step * ROWS_SHARES);
    return step * (turns < 1 ? 1 : turns > 8 ? 8 : turns);
}
/* out[i] += the sum over `runs` of partial[run * stride + i], i < width; the runs in fixed order. */
dt_status dtp_cuda_add_runs(dt_exec *exec, float *out, const float *partial, int64_t runs, int64_t width,
                            int64_t stride, dt_err *err);

DT_DEVICE int64_t rows_at(const rows_view &v, int64_t t, int64_t h)
{
    return t * v.row + h * v.head;
}
DT_DEVICE float rows_get(const rows_view &v, int64_t i)
{
    return load_element(v.data, v.is_float, i);
}
DT_DEVICE void rows_set(const rows_view &v, int64_t i, float x)
{
    store_element(v.data, v.is_float, i, x);
}
DT_DEVICE uint4 rows_load8(const rows_view &v, int64_t i)
{
    return *(const uint4 *)((const uint16_t *)v.data + i);
}
DT_DEVICE void rows_store8(const rows_view &v, int64_t i, const float (&x)[8])
{
    *(uint4 *)((uint16_t *)v.data + i) = pack8(x);
}
/* Eight values of a [D] weight. */
DT_DEVICE void rows_weight8(float (&w)[8], const rows_view &weight, int64_t i)
{
    if (!weight.is_float) {
        unpack8(w, rows_load8(weight, i));
        return;
    }
    float4 low = *(const float4 *)((const float *)weight.data + i),
           high = *(const float4 *)((const float *)weight.data + i + 4);
    w[0] = low.x, w[1] = low.y, w[2] = low.z, w[3] = low.w;
    w[4] = high.x, w[5] = high.y, w[6] = high.z, w[7] = high.w;
}

/* Sums of N values over a team of TEAM neighbouring threads, in every thread of it: part of a warp, or the block of
 * ROWS_THREADS. A block writes 4 N floats to `shared`, which the sum before last has been read from by then. */
template <int TEAM, int N> DT_DEVICE void rows_team_sum(float (&x)[N], float *shared)
{
    DT_UNROLL
    for (int lanes = (TEAM < 32 ? TEAM : 32) / 2; lanes; lanes /= 2) {
        DT_UNROLL
        for (int i = 0; i < N; i++)
            x[i] += shuffle_xor(x[i], lanes);
    }
    if constexpr (TEAM > 32) {
        int warp = (int)threadIdx.x / 32;
        if (threadIdx.x % 32 == 0) {
            DT_UNROLL
            for (int i = 0; i < N; i++)
                shared[i * 4 + warp] = x[i];
        }
        block_sync();
        DT_UNROLL
        for (int i = 0; i < N; i++)
            x[i] = (shared[i * 4] + shared[i * 4 + 1]) + (shared[i * 4 + 2] + shared[i * 4 + 3]);
    }
}
/* The same over a warp: the plain kernels have one for a row. */
DT_DEVICE float rows_warp_sum(float x)
{
    float one[1] = {x};
    rows_team_sum<32>(one, (float *)0);
    return one[0];
}

/* columns[team][TEAM * 8] of all teams of the block summed in order and written to to[0 .. width-1]. `mine`: this
 * thread's 8 columns. Teams are parts of a warp. */
template <int TEAM> DT_DEVICE void rows_store_columns(float *to, const float (&mine)[8], float *columns, int width)
{
    enum { WIDTH = TEAM * 8, TEAMS = ROWS_THREADS / TEAM };
    int team = (int)threadIdx.x / TEAM, lane = (int)threadIdx.x % TEAM;
    DT_UNROLL
    for (int i = 0; i < 8; i++)
        columns[team * WIDTH + lane * 8 + i] = mine[i];
    block_sync();
    for (int i = (int)threadIdx.x; i < width; i += ROWS_THREADS) {
        float sum = 0.0f;
        for (int k = 0; k < TEAMS; k++)
            sum += columns[k * WIDTH + i];
        to[i] = sum;
    }
}
#endif
