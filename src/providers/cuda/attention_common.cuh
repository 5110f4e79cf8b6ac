/* What the attention kernels share: parameters, the search for a block's tile, tile loads and stores.
 *
 * The four (or 1, 2, 3, ...) query heads of one key head are worked on together: row r of a query tile is head r %
 * group of token r / group, so that a tile of keys is loaded once for all of them. Scores are in units of log2: s = q.k
 * scale log2(e), p = 2^(s - lse). */
#ifndef DT_CUDA_ATTENTION_COMMON_CUH
#define DT_CUDA_ATTENTION_COMMON_CUH
#include "providers/cuda/elements.cuh"
#include "providers/cuda/mm.cuh"

enum { ATTENTION_ROWS = 64, ATTENTION_PANEL = ATTENTION_ROWS * 128 };

/* A [T, heads, D] tensor; strides in elements. */
struct attention_rows {
    void *data;
    int64_t row, head;
    int is_float;
};
struct attention_params {
    attention_rows q, k, v, o, d_o, dq, dk, dv;
    const int32_t *q_cu, *k_cu; /* device */
    int32_t n_seq_cap, heads, kv_heads, D;
    int32_t group;  /* query heads of a key head */
    int32_t tokens; /* of a query tile: 64 / group */
    int32_t magic;  /* row * magic >> 16 == row / group */
    int64_t T_cap, key_cap;
    float scale, scale_log2;
    float *lse;    /* [T_cap, heads], log2 of the sum of 2^s; NULL: not wanted */
    uint8_t *rest; /* [T_cap, heads, D], bits 8..15 of o as it was before rounding; see attention_store_rest */
    float *mean;   /* [T_cap, heads], sum do.o */
};

/* Consecutive tokens of one sample, and where its keys are. */
struct attention_tile {
    int start, length;  /* first token of the tile, tokens of the sample */
    int row0, key_row0; /* first row of the sample among queries, among keys */
    int keys, offset;   /* keys of the sample; query i is at position offset + i */
};

/* The tile of `slot`, or false if it is one of the surplus. Sample n has the slots from cu[n] / size + n on: at least
 * as many as it has tiles, so no table has to be built, and slots depend on capacities only. */
DT_DEVICE bool attention_find(attention_tile &t, const attention_params &p, int slot, int size)
{
    int low = 0, high = p.n_seq_cap;
    if (slot < 0 || high == 0)
        return false;
    while (high - low > 1) { /* all lanes look at once: a load takes long */
        int step = (high - low + 31) / 32, n = low + ((int)threadIdx.x & 31) * step;
        low += (count_lanes(n < high && p.q_cu[n] / size + n <= slot) - 1) * step;
        high = low + step < high ? low + step : high;
    }
    t.row0 = p.q_cu[low];
    t.length = p.q_cu[low + 1] - t.row0;
    t.start = (slot - t.row0 / size - low) * size;
    if (t.start >= t.length)
        return false;
    t.key_row0 = p.k_cu[low];
    t.keys = p.k_cu[low + 1] - t.key_row0;
    t.offset = t.keys - t.length;
    return true;
}

DT_DEVICE int attention_token(const attention_params &p, int row)
{
    return row * p.magic >> 16;
}
DT_DEVICE uint16_t *attention_at(const attention_rows &x, int64_t row, int head)
{
    return (uint16_t *)x.data + row * x.row + (int64_t)head * x.head;
}

/* Starts the loads of a tile of `tokens` tokens of all query heads of a key head; the rows behind them become 0. */
template <int D, int THREADS>
DT_DEVICE void attention_load_queries(uint32_t tile, const attention_rows &x, const attention_params &p, int64_t row0,
                                      int tokens, int kv_head, int thread)
{
    const uint16_t *base = attention_at(x, row0, kv_head * p.group);
    DT_UNROLL
    for (int n = 0; n < ATTENTION_ROWS * (D / 8) / THREADS; n++) {
        int i = n * THREADS + thread, row = i / (D / 8), unit = i % (D / 8);
        int token = attention_token(p, row), head = row - token * p.group;
        bool inside = token < tokens;
        copy_async16(tile_unit(tile + (uint32_t)(unit >> 3) * ATTENTION_PANEL, row, unit & 7),
                     inside ? base + token * x.row + head * x.head + unit * 8 : base, inside ? 16 : 0);
    }
}
/* Starts the loads of `rows` rows of one key head; the rows behind them become 0. */
template <int D, int THREADS>
DT_DEVICE void attention_load_keys(uint32_t tile, const attention_rows &x, int64_t row0, int rows, int head, int thread)
{
    const uint16_t *base = attention_at(x, row0, head);
    DT_UNROLL
    for (int n = 0; n < ATTENTION_ROWS * (D / 8) / THREADS; n++) {
        int i = n * THREADS + thread, row = i / (D / 8), unit = i % (D / 8);
        bool inside = row < rows;
        copy_async16(tile_unit(tile + (uint32_t)(unit >> 3) * ATTENTION_PANEL, row, unit & 7),
                     inside ? base + row * x.row + unit * 8 : base, inside ? 16 : 0);
    }
}

/* Calls store(row, unit, 16 bytes) for the 16 rows of this warp, WIDTH columns, that lie in a tile. */
template <int WIDTH, class F> DT_DEVICE void attention_each_unit(uint32_t tile, int warp, F store)
{
    enum { AT_ONCE = 256 / WIDTH }; /* rows */
    const int lane = (int)threadIdx.x & 31, unit = lane % (WIDTH / 8);
    const uint32_t panel = tile + (uint32_t)(unit >> 3) * ATTENTION_PANEL;
    DT_ROLLED
    for (int row = 16 * warp + lane / (WIDTH / 8); row < 16 * warp + 16; row += 4 * AT_ONCE) {
        uint4 v[4];
        DT_UNROLL
        for (int i = 0; i < 4; i++)
            v[i] = load_shared16(tile_unit(panel, row + i * AT_ONCE, unit & 7));
        DT_UNROLL
        for (int i = 0; i < 4; i++)
            store(row + i * AT_ONCE, unit, v[i]);
    }
}
/* Stores such rows of a query tile to x, from (row0, first head of the key head, column) on. */
template <int WIDTH>
DT_DEVICE void attention_store_queries(uint32_t tile, const attention_rows &x, const attention_params &p, int64_t row0,
                                       int tokens, int kv_head, int column, int warp)
{
    uint16_t *base = attention_at(x, row0, kv_head * p.group) + column;
    const int row_stride = (int)x.row, head_stride = (int)x.head;
    attention_each_unit<WIDTH>(tile, warp, [=, &p](int row, int unit, const uint4 &v) {
        int token = attention_token(p, row), head = row - token * p.group;
        if (token < tokens)
            *(uint4 *)(base + token * row_stride + head * head_stride + unit * 8) = v;
    });
}
template <int D>
DT_DEVICE void attention_store_keys(uint32_t tile, const attention_rows &x, int64_t row0, int rows, int head, int warp)
{
    uint16_t *base = attention_at(x, row0, head);
    const int row_stride = (int)x.row;
    attention_each_unit<D>(tile, warp, [=](int row, int unit, const uint4 &v) {
        if (row < rows)
            *(uint4 *)(base + row * row_stride + unit * 8) = v;
    });
}

/* A result of PARTS x N columns, times `factor` of its row (0: lane/4, 1: that + 8), as bf16 into the warp's rows. */
template <int ISA, int PARTS, int N>
DT_DEVICE void attention_stage(uint32_t tile, float (&x)[PARTS][N / 2], float factor0, float factor1, int warp)
{
    DT_UNROLL
    for (int part = 0; part < PARTS; part++) {
        uint32_t a[N / 16][4];
        DT_UNROLL
        for (int i = 0; i < N / 2; i++)
            x[part][i] *= i & 2 ? factor1 : factor0;
        pack_operand<N>(a, x[part]);
        DT_UNROLL
        for (int s = 0; s < N / 16; s++)
            store_operand<ISA>(tile, ATTENTION_PANEL, 16 * warp, part * (N / 16) + s, a[s]);
    }
    warp_sync();
}

/* Rows from .. to-1 are 0. By all blocks. */
DT_DEVICE void attention_clear(const attention_rows &x, int64_t from, int64_t to, int heads, int D)
{
    int64_t width = (int64_t)heads * D, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (to - from) * width; i += step)
        store_element(x.data, x.is_float, (from + i / width) * x.row + i % width / D * x.head + i % D, 0.0f);
}
#endif
