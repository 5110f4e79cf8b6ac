/* Rows of the embedding, and the gradient of its weight.
 *
 * Backward has no list of the rows of an id to go by, so each block looks for them: the block of row t reads the ids
 * until it meets its own, leaves when that is an earlier row, and else adds up all its rows in order. */
#ifndef DT_CUDA_EMBEDDING_CUH
#define DT_CUDA_EMBEDDING_CUH
#include "providers/cuda/rows.cuh"

enum {
    EMBEDDING_ROWS = 4, /* of a thread, forward */
    EMBEDDING_THREADS = 256,
    EMBEDDING_PIECE = 1024,                   /* ids a block looks at at a time */
    EMBEDDING_COLUMNS = EMBEDDING_THREADS * 4 /* of a block, backward */
};

struct embedding_params {
    const int32_t *ids;
    rows_view weight, y, dy, dweight;
    int64_t T, T_cap, vocabulary;
    int32_t width;
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

struct embedding_shared {
    uint32_t mask[EMBEDDING_PIECE / 32];
    int list[EMBEDDING_PIECE];
};
/* The rows of this piece whose id is `id`, in order, in m.list. All threads of the block; returns their number. */
DT_DEVICE int embedding_find(embedding_shared &m, const embedding_params &p, int64_t base, int32_t id)
{
    enum { LOOKS = EMBEDDING_PIECE / EMBEDDING_THREADS };
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, count = 0;
    uint32_t mine[LOOKS];
    block_sync(); /* the list of the last piece has been read */
    DT_UNROLL
    for (int k = 0; k < LOOKS; k++) {
        int64_t t = base + k * EMBEDDING_THREADS + threadIdx.x;
        mine[k] = warp_ballot(t < p.T && p.ids[t] == id);
        if (lane == 0)
            m.mask[k * (EMBEDDING_THREADS / 32) + warp] = mine[k];
    }
    block_sync();
    for (int i = 0; i < EMBEDDING_PIECE / 32; i++) {
        DT_UNROLL
        for (int k = 0; k < LOOKS; k++)
            if (i == k * (EMBEDDING_THREADS / 32) + warp && (mine[k] >> lane & 1))
                m.list[count + bit_count(mine[k] & ((1u << lane) - 1))] = k * EMBEDDING_THREADS + (int)threadIdx.x;
        count += bit_count(m.mask[i]);
    }
    if (count)
        block_sync();
    return count;
}
DT_DEVICE void embedding_load4(float (&x)[4], const embedding_params &p, int64_t t, int column)
{
    DT_UNROLL
    for (int c = 0; c < 4; c++)
        x[c] = column + c < p.width ? rows_get(p.dy, t * p.dy.row + column + c) : 0.0f;
}
/* FAST: bf16 rows in pieces of 8 bytes. */
template <bool FAST> DT_KERNEL(EMBEDDING_THREADS, 1) embedding_backward_kernel(const embedding_params p)
{
    DT_SHARED(shared);
    embedding_shared &m = *(embedding_shared *)shared;
    int chunks = (p.width + EMBEDDING_COLUMNS - 1) / EMBEDDING_COLUMNS;
    int column = (int)(blockIdx.x % (unsigned)chunks) * EMBEDDING_COLUMNS + (int)threadIdx.x * 4;
    int64_t row = blockIdx.x / (unsigned)chunks;
    int32_t id = p.ids[row];
    float sum[4] = {0};
    if (id < 0 || id >= p.vocabulary)
        return;
    float *to = (float *)p.dweight.data + (int64_t)id * p.dweight.row + column;
    DT_UNROLL
    for (int c = 0; c < 4; c++)
        sum[c] = column + c < p.width ? to[c] : 0.0f;
    for (int64_t base = 0; base < p.T; base += EMBEDDING_PIECE) {
        int count = embedding_find(m, p, base, id);
        if (count && base + m.list[0] < row)
            return;
        for (int i = 0; i < count; i += 4) {
            float d[4][4];
            DT_UNROLL
            for (int k = 0; k < 4; k++)
                if (i + k < count) {
                    int64_t t = base + m.list[i + k];
                    if (FAST && column < p.width) {
                        uint2 pair = *(const uint2 *)((const uint16_t *)p.dy.data + t * p.dy.row + column);
                        d[k][0] = bf16_low(pair.x), d[k][1] = bf16_high(pair.x);
                        d[k][2] = bf16_low(pair.y), d[k][3] = bf16_high(pair.y);
                    } else
                        embedding_load4(d[k], p, t, column);
                }
            DT_UNROLL
            for (int k = 0; k < 4; k++) {
                DT_UNROLL
                for (int c = 0; c < 4; c++)
                    if (i + k < count)
                        sum[c] += d[k][c];
            }
        }
    }
    if (FAST && column < p.width) {
        *(float4 *)to = make_float4(sum[0], sum[1], sum[2], sum[3]);
        return;
    }
    DT_UNROLL
    for (int c = 0; c < 4; c++)
        if (column + c < p.width)
            to[c] = sum[c];
}
#endif
