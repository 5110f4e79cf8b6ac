/* Rows of the embedding, and the gradient of its weight. Backward sorts the rows by id first (each counts those that
 * come before it), then the block of an id's first row adds up all its rows in order. */
#ifndef DT_CUDA_EMBEDDING_CUH
#define DT_CUDA_EMBEDDING_CUH
#include "providers/cuda/rows.cuh"

enum {
    EMBEDDING_ROWS = 4, /* of a thread, forward */
    EMBEDDING_SORT_ROWS = 32,
    EMBEDDING_SORT_PARTS = 16,           /* of the ids, each counted by a warp */
    EMBEDDING_AHEAD = 8,                 /* rows in flight, backward */
    EMBEDDING_COLUMNS = ROWS_THREADS * 4 /* of a block, backward */
};

struct embedding_params {
    const int32_t *ids;
    rows_view weight, y, dy, dweight;
    int64_t T, T_cap, vocabulary;
    int32_t width;
    int32_t *order; /* [T] rows by id, then by number */
};

/* An id outside the weight gives NaN, which no later check overlooks. */
DT_KERNEL(ROWS_THREADS, 1) embedding_forward_kernel(const embedding_params p)
{
    int chunks = (p.width / 8 + ROWS_THREADS - 1) / ROWS_THREADS;
    int column = ((int)(blockIdx.x % (unsigned)chunks) * ROWS_THREADS + (int)threadIdx.x) * 8;
    int64_t first = (int64_t)(blockIdx.x / (unsigned)chunks) * EMBEDDING_ROWS;
    uint4 x[EMBEDDING_ROWS];
    if (column >= p.width)
        return;
    DT_UNROLL
    for (int i = 0; i < EMBEDDING_ROWS; i++) {
        int64_t id = first + i < p.T ? p.ids[first + i] : -1;
        uint32_t other = first + i < p.T ? 0x7fc07fc0u : 0;
        x[i] = id >= 0 && id < p.vocabulary ? rows_load8(p.weight, id * p.weight.row + column)
                                            : make_uint4(other, other, other, other);
    }
    DT_UNROLL
    for (int i = 0; i < EMBEDDING_ROWS; i++)
        if (first + i < p.T_cap)
            *(uint4 *)((uint16_t *)p.y.data + (first + i) * p.y.row + column) = x[i];
}
DT_KERNEL(ROWS_THREADS, 1) embedding_plain_forward_kernel(const embedding_params p)
{
    int64_t i = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x, t = i / p.width, column = i % p.width;
    if (t >= p.T_cap)
        return;
    int64_t id = t < p.T ? p.ids[t] : -1;
    float other = t < p.T ? float_from_bits(0x7fc00000u) : 0.0f;
    rows_set(p.y, t * p.y.row + column,
             id >= 0 && id < p.vocabulary ? rows_get(p.weight, id * p.weight.row + column) : other);
}

DT_DEVICE int embedding_before(int32_t other, int i, int32_t id, int row)
{
    return other < id || (other == id && i < row);
}
/* The place of a row: a lane each, the warps share the ids. VECTORS: the ids are 16-byte aligned. */
template <bool VECTORS>
DT_KERNEL(EMBEDDING_SORT_ROWS *EMBEDDING_SORT_PARTS, 1)
embedding_sort_kernel(const embedding_params p)
{
    DT_SHARED(shared);
    int *counts = (int *)shared, lane = (int)threadIdx.x % EMBEDDING_SORT_ROWS, T = (int)p.T, count = 0;
    int part = (int)threadIdx.x / EMBEDDING_SORT_ROWS, row = (int)blockIdx.x * EMBEDDING_SORT_ROWS + lane;
    int length = (T + 4 * EMBEDDING_SORT_PARTS - 1) / (4 * EMBEDDING_SORT_PARTS) * 4, begin = part * length,
        end = begin + length < T ? begin + length : T;
    int32_t id = row < T ? p.ids[row] : 0;
    int i = begin;
    for (; VECTORS && i + 4 <= end; i += 4) {
        int4 other = *(const int4 *)(p.ids + i);
        count += embedding_before(other.x, i, id, row) + embedding_before(other.y, i + 1, id, row) +
                 embedding_before(other.z, i + 2, id, row) + embedding_before(other.w, i + 3, id, row);
    }
    for (; i < end; i++)
        count += embedding_before(p.ids[i], i, id, row);
    counts[part * EMBEDDING_SORT_ROWS + lane] = count;
    block_sync();
    if (part != 0 || row >= T)
        return;
    for (int k = 1; k < EMBEDDING_SORT_PARTS; k++)
        count += counts[k * EMBEDDING_SORT_ROWS + lane];
    p.order[count] = row;
}
/* Four columns of dy of a row. FAST: bf16, 8 bytes at once. */
template <bool FAST> DT_DEVICE void embedding_load4(float (&x)[4], const embedding_params &p, int64_t t, int column)
{
    if (FAST) {
        uint2 pair = *(const uint2 *)((const uint16_t *)p.dy.data + t * p.dy.row + column);
        x[0] = bf16_low(pair.x), x[1] = bf16_high(pair.x);
        x[2] = bf16_low(pair.y), x[3] = bf16_high(pair.y);
        return;
    }
    DT_UNROLL
    for (int c = 0; c < 4; c++)
        x[c] = column + c < p.width ? rows_get(p.dy, t * p.dy.row + column + c) : 0.0f;
}
template <bool FAST> DT_KERNEL(ROWS_THREADS, 1) embedding_backward_kernel(const embedding_params p)
{
    int chunks = (p.width + EMBEDDING_COLUMNS - 1) / EMBEDDING_COLUMNS;
    int column = (int)(blockIdx.x % (unsigned)chunks) * EMBEDDING_COLUMNS + (int)threadIdx.x * 4;
    int64_t place = blockIdx.x / (unsigned)chunks;
    int32_t id = p.ids[p.order[place]];
    float sum[4];
    if (id < 0 || id >= p.vocabulary || column >= p.width || (place > 0 && p.ids[p.order[place - 1]] == id))
        return;
    float *to = (float *)p.dweight.data + (int64_t)id * p.dweight.row + column;
    DT_UNROLL
    for (int c = 0; c < 4; c++)
        sum[c] = column + c < p.width ? to[c] : 0.0f;
    for (bool more = true; more; place += EMBEDDING_AHEAD) {
        float d[EMBEDDING_AHEAD][4] = {{0}};
        int count = 0;
        DT_UNROLL
        for (int k = 0; k < EMBEDDING_AHEAD; k++) {
            int32_t t = place + k < p.T ? p.order[place + k] : 0;
            bool mine = place + k < p.T && p.ids[t] == id;
            count += mine;
            if (mine)
                embedding_load4<FAST>(d[k], p, t, column);
        }
        more = count == EMBEDDING_AHEAD;
        DT_UNROLL
        for (int k = 0; k < EMBEDDING_AHEAD; k++) {
            DT_UNROLL
            for (int c = 0; c < 4; c++)
                sum[c] += d[k][c];
        }
    }
    if (FAST) {
        *(float4 *)to = make_float4(sum[0], sum[1], sum[2], sum[3]);
        return;
    }
    DT_UNROLL
    for (int c = 0; c < 4; c++)
        if (column + c < p.width)
            to[c] = sum[c];
}
#endif
