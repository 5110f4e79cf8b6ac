/* Attention backward without atomics: every gradient is summed by one block, in one order.
 *
 * With S = scale Q K^T, P = 2^(S - lse), dP = dO V^T, dS = P (dP - mean):  dV = P^T dO, dK = scale dS^T Q, dQ = scale
 * dS K. Blocks of keys hold dK and dV and walk the query tiles of their sample; blocks of queries hold dQ and walk the
 * key tiles. Both kinds run in one launch, keys first since they take longest. In both the first warpgroup makes S and
 * P, the second dP and dS; P travels between them in fp32. */
#ifndef DT_CUDA_ATTENTION_BACKWARD_CUH
#define DT_CUDA_ATTENTION_BACKWARD_CUH
#include "providers/cuda/attention_forward.cuh"

enum { ATTENTION_BACKWARD_THREADS = 256, ATTENTION_MEAN_THREADS = 256 };

/* X and Y stay: K and V of a key block, Q and dO of a query block. STREAM: the two tiles that are walked, once only,
 * since a block has 163 KB of shared memory on sm_80. */
template <int D> struct attention_backward_shape {
    enum {
        TILE = ATTENTION_ROWS * D * 2,
        X = 0,
        Y = X + TILE,
        STREAM = Y + TILE,
        DS = STREAM + 2 * TILE,
        P = DS + ATTENTION_PANEL,
        FACTORS = P + 2 * ATTENTION_PANEL, /* lse and mean of a query tile, two stages */
        SHARED = FACTORS + 2 * 2 * ATTENTION_ROWS * 4,
        PART = D < 128 ? D : 128,
        PARTS = D / PART,
        HALF = D < 128 ? 64 : D / 2 /* columns of dQ a warpgroup sums; with D = 64 the second alone */
    };
};

/* A thread's part of a 64 x 64 matrix, kept where the same thread of the other warpgroup finds it. */
DT_DEVICE void attention_hand_over(uint32_t to, const float (&s)[32])
{
    DT_UNROLL
    for (int i = 0; i < 8; i++)
        store_shared16(to + (uint32_t)(i * 128 + ((int)threadIdx.x & 127)) * 16u,
                       make_uint4(float_bits(s[4 * i]), float_bits(s[4 * i + 1]), float_bits(s[4 * i + 2]),
                                  float_bits(s[4 * i + 3])));
}
/* dP to dS, with P of the other warpgroup; mean(i) of element i. */
template <class F> DT_DEVICE void attention_score_gradient(float (&s)[32], uint32_t from, F mean)
{
    DT_UNROLL
    for (int j = 0; j < 8; j++) {
        uint4 v = load_shared16(from + (uint32_t)(j * 128 + ((int)threadIdx.x & 127)) * 16u);
        s[4 * j] = float_from_bits(v.x) * (s[4 * j] - mean(4 * j));
        s[4 * j + 1] = float_from_bits(v.y) * (s[4 * j + 1] - mean(4 * j + 1));
        s[4 * j + 2] = float_from_bits(v.z) * (s[4 * j + 2] - mean(4 * j + 2));
        s[4 * j + 3] = float_from_bits(v.w) * (s[4 * j + 3] - mean(4 * j + 3));
    }
}

/* ---- blocks of keys ---- */

/* lse or mean of row `row` of the query tile from `start` on; rows of no query have an infinite lse, so P = 0. */
DT_DEVICE float attention_factor(const attention_params &p, const attention_tile &t, int start, int row, int kv_head,
                                 bool lse)
{
    int token = attention_token(p, row), head = row - token * p.group;
    if (token >= p.tokens || start + token >= t.length)
        return lse ? INFINITY : 0.0f;
    return (lse ? p.lse : p.mean)[((int64_t)t.row0 + start + token) * p.heads + kv_head * p.group + head];
}

/* S^T to P^T: rows are keys from key0 on, columns the query tile from `start` on. */
DT_DEVICE void attention_probabilities_trans(float (&s)[32], const attention_params &p, const float *lse, int key0,
                                             int start, int warp)
{
    const int lane = (int)threadIdx.x & 31, column = 2 * (lane & 3), key = key0 + 16 * warp + lane / 4;
    const bool masked = start < key0 + ATTENTION_ROWS - 1;
    DT_UNROLL
    for (int j = 0; j < 8; j++) {
        float2 f = *(const float2 *)(lse + 8 * j + column);
        DT_UNROLL
        for (int i = 0; i < 4; i++)
            s[4 * j + i] = exp2_fast(fmaf(s[4 * j + i], p.scale_log2, i & 1 ? -f.y : -f.x));
    }
    if (masked) {
        DT_UNROLL
        for (int i = 0; i < 32; i++)
            if (key + (i & 2) * 4 > start + attention_token(p, (i >> 2) * 8 + column + (i & 1)))
                s[i] = 0.0f;
    }
}

template <int D>
DT_DEVICE void attention_load_pair(uint32_t to, const attention_params &p, const attention_tile &t, int start,
                                   int kv_head)
{
    typedef attention_backward_shape<D> shape;
    int tokens = t.length - start < p.tokens ? t.length - start : p.tokens;
    attention_load_queries<D, ATTENTION_BACKWARD_THREADS>(to, p.q, p, (int64_t)t.row0 + start, tokens, kv_head,
                                                          (int)threadIdx.x);
    attention_load_queries<D, ATTENTION_BACKWARD_THREADS>(to + shape::TILE, p.d_o, p, (int64_t)t.row0 + start, tokens,
                                                          kv_head, (int)threadIdx.x);
}

template <int D> DT_DEVICE void attention_key_block(const attention_params &p, int slot, int kv_head)
{
    typedef attention_backward_shape<D> shape;
    DT_SHARED(shared);
    const uint32_t base = shared_address(shared), k = base + shape::X, v = base + shape::Y, q = base + shape::STREAM,
                   d_o = q + shape::TILE;
    const int thread = (int)threadIdx.x, group = uniform(thread / 128), warp = thread / 32 % 4, lane = thread & 31;
    float *const factors = (float *)(shared + shape::FACTORS);
    attention_tile t;
    if (!attention_find(t, p, slot, ATTENTION_ROWS))
        return;
    const int key0 = t.start, rows = t.length - key0;
    const int64_t key_row = (int64_t)t.row0 + key0;
    attention_load_keys<D, ATTENTION_BACKWARD_THREADS>(k, p.k, key_row, rows, kv_head, thread);
    attention_load_keys<D, ATTENTION_BACKWARD_THREADS>(v, p.v, key_row, rows, kv_head, thread);
    attention_load_pair<D>(q, p, t, key0, kv_head);
    copy_commit();
    float *const my_factor = factors + thread; /* [stage][lse, mean][64] by the first 128 threads */
    if (thread < 128)
        *my_factor = attention_factor(p, t, key0, thread & 63, kv_head, thread < 64);

    float gradient[shape::PARTS][shape::PART / 2]; /* dV in the first warpgroup, dK in the second */
    DT_UNROLL
    for (int part = 0; part < shape::PARTS; part++)
        mm_clear(gradient[part]);
    for (int start = key0, n = 0; start < t.length; start += p.tokens, n++) {
        const int next = start + p.tokens;
        const float *factor = factors + (n & 1) * 128;
        float s[32], coming = 0.0f;
        uint32_t a[4][4];
        attention_arrived<0>();
        if (thread < 128 && next < t.length)
            coming = attention_factor(p, t, next, thread & 63, kv_head, thread < 64);
        mm_ss<ISA_MMA, 64, D / 16, K_MAJOR, K_MAJOR>(s, group ? v : k, ATTENTION_PANEL, group ? d_o : q,
                                                     ATTENTION_PANEL, false);
        if (group == 0) {
            attention_probabilities_trans(s, p, factor, key0, start, warp);
            attention_hand_over(base + shape::P, s);
        }
        block_sync();
        if (group == 1) {
            const float *mean = factor + 64 + 2 * (lane & 3);
            attention_score_gradient(s, base + shape::P, [=](int i) { return mean[(i >> 2) * 8 + (i & 1)]; });
        }
        pack_operand<64>(a, s);
        DT_UNROLL
        for (int part = 0; part < shape::PARTS; part++)
            mm_rs<ISA_MMA, shape::PART, 4, MN_MAJOR>(
                gradient[part], a, (group ? q : d_o) + (uint32_t)(part * (shape::PART / 64)) * ATTENTION_PANEL,
                ATTENTION_PANEL, true);
        if (thread < 128)
            my_factor[((n + 1) & 1) * 128] = coming;
        block_sync();
        if (next < t.length)
            attention_load_pair<D>(q, p, t, next, kv_head);
        copy_commit();
    }
    copy_wait<0>();
    block_sync();
    const float factor = group ? p.scale : 1.0f;
    attention_stage<ISA_MMA, shape::PARTS, shape::PART>(group ? k : v, gradient, factor, factor, warp);
    attention_store_keys<D>(group ? k : v, group ? p.dk : p.dv, key_row, rows, kv_head, warp);
}

/* ---- blocks of queries ---- */

template <int D>
DT_DEVICE void attention_load_key_pair(uint32_t to, const attention_params &p, const attention_tile &t, int key0,
                                       int kv_head)
{
    typedef attention_backward_shape<D> shape;
    attention_load_keys<D, ATTENTION_BACKWARD_THREADS>(to, p.k, (int64_t)t.row0 + key0, t.length - key0, kv_head,
                                                       (int)threadIdx.x);
    attention_load_keys<D, ATTENTION_BACKWARD_THREADS>(to + shape::TILE, p.v, (int64_t)t.row0 + key0, t.length - key0,
                                                       kv_head, (int)threadIdx.x);
}

/* S to P: columns are keys from key0 on, rows 0 (lane/4) and 1 (+ 8) queries at `position`. */
DT_DEVICE void attention_probabilities(float (&s)[32], const float (&lse)[2], const int (&position)[2], int key0,
                                       bool masked, float scale)
{
    const int column = key0 + 2 * ((int)threadIdx.x & 3);
    DT_UNROLL
    for (int i = 0; i < 32; i++)
        s[i] = exp2_fast(fmaf(s[i], scale, -lse[i >> 1 & 1]));
    if (masked) {
        DT_UNROLL
        for (int i = 0; i < 32; i++)
            if (column + (i >> 2) * 8 + (i & 1) > position[i >> 1 & 1])
                s[i] = 0.0f;
    }
}

template <int D> DT_DEVICE void attention_query_block(const attention_params &p, int slot, int kv_head)
{
    typedef attention_backward_shape<D> shape;
    DT_SHARED(shared);
    const uint32_t base = shared_address(shared), q = base + shape::X, d_o = base + shape::Y, k = base + shape::STREAM,
                   v = k + shape::TILE;
    const int thread = (int)threadIdx.x, group = uniform(thread / 128), warp = thread / 32 % 4, lane = thread & 31;
    attention_tile t;
    if (!attention_find(t, p, slot, p.tokens))
        return;
    const int tokens = t.length - t.start < p.tokens ? t.length - t.start : p.tokens, row = 16 * warp + lane / 4;
    attention_load_pair<D>(base + shape::X, p, t, t.start, kv_head);
    attention_load_key_pair<D>(k, p, t, 0, kv_head);
    copy_commit();
    const int position[2] = {t.start + attention_token(p, row), t.start + attention_token(p, row + 8)};
    const float factor[2] = {attention_factor(p, t, t.start, row, kv_head, group == 0),
                             attention_factor(p, t, t.start, row + 8, kv_head, group == 0)};
    const bool sums = D >= 128 || group == 1; /* columns HALF * group .. of dQ */
    const uint32_t column = D >= 128 ? (uint32_t)(group * (shape::HALF / 64)) * ATTENTION_PANEL : 0u;
    float gradient[1][shape::HALF / 2];
    mm_clear(gradient[0]);
    for (int key0 = 0, n = 0; key0 < t.start + tokens; key0 += ATTENTION_ROWS, n++) {
        const int next = key0 + ATTENTION_ROWS;
        float s[32];
        attention_arrived<0>();
        mm_ss<ISA_MMA, 64, D / 16, K_MAJOR, K_MAJOR>(s, group ? d_o : q, ATTENTION_PANEL, group ? v : k,
                                                     ATTENTION_PANEL, false);
        if (group == 0) {
            attention_probabilities(s, factor, position, key0, next - 1 > t.start, p.scale_log2);
            attention_hand_over(base + shape::P, s);
        }
        block_sync();
        if (group == 1) {
            uint32_t a[4][4];
            attention_score_gradient(s, base + shape::P, [=](int i) { return factor[i >> 1 & 1]; });
            pack_operand<64>(a, s);
            DT_UNROLL
            for (int i = 0; i < 4; i++)
                store_operand<ISA_MMA>(base + shape::DS, ATTENTION_PANEL, 16 * warp, i, a[i]);
        }
        block_sync();
        if (sums)
            mm_ss<ISA_MMA, shape::HALF, 4, K_MAJOR, MN_MAJOR>(gradient[0], base + shape::DS, ATTENTION_PANEL,
                                                              k + column, ATTENTION_PANEL, true);
        block_sync();
        if (next < t.start + tokens)
            attention_load_key_pair<D>(k, p, t, next, kv_head);
        copy_commit();
    }
    copy_wait<0>();
    block_sync();
    if (sums) {
        attention_stage<ISA_MMA, 1, shape::HALF>(q + column, gradient, p.scale, p.scale, warp);
        attention_store_queries<shape::HALF>(q + column, p.dq, p, (int64_t)t.row0 + t.start, tokens, kv_head,
                                             D >= 128 ? group * shape::HALF : 0, warp);
    }
}

template <int D>
DT_KERNEL(ATTENTION_BACKWARD_THREADS, 1)
attention_backward_kernel(DT_GRID_CONSTANT attention_params p, int32_t key_slots, int32_t query_slots)
{
    int slot = (int)blockIdx.x / p.kv_heads, kv_head = (int)blockIdx.x % p.kv_heads;
    if (slot < key_slots) /* the first keys of a sample meet most queries, the last queries most keys */
        attention_key_block<D>(p, slot, kv_head);
    else
        attention_query_block<D>(p, key_slots + query_slots - 1 - slot, kv_head);
}

/* ---- before them: mean = sum do.o of every row and head; rows behind the pack of all gradients ---- */

/* A lane has columns 8 k, 8 k + 1 for four k: those whose rest lies together (attention_store_rest). */
template <int D> DT_KERNEL(ATTENTION_MEAN_THREADS, 4) attention_mean_kernel(DT_GRID_CONSTANT attention_params p)
{
    enum { LANES = D / 8, ROWS = ATTENTION_MEAN_THREADS / LANES };
    const int T = p.q_cu[p.n_seq_cap], rows = T * p.heads;
    const int unit = (int)threadIdx.x % LANES, column = unit / 8 * 64 + unit % 2 * 32 + unit % 8 / 2 * 2;
    for (int first = (int)blockIdx.x * ROWS; first < rows; first += (int)gridDim.x * ROWS) {
        const int i = first + (int)threadIdx.x / LANES, row = i / p.heads, head = i - row * p.heads;
        float sum = 0.0f;
        if (row < T) {
            const uint16_t *o = attention_at(p.o, row, head) + column, *d_o = attention_at(p.d_o, row, head) + column;
            const uint2 rest = *(const uint2 *)(p.rest + (int64_t)i * D + unit * 8);
            DT_UNROLL
            for (int k = 0; k < 4; k++) {
                const uint32_t x = *(const uint32_t *)(o + 8 * k), y = *(const uint32_t *)(d_o + 8 * k),
                               r = (k < 2 ? rest.x : rest.y) >> (k & 1) * 16;
                /* rounding went up where the rest is 128 or more */
                sum = fmaf(float_from_bits((x << 16) + (uint32_t)((int8_t)r * 256)), bf16_low(y), sum);
                sum = fmaf(float_from_bits((x & 0xffff0000u) + (uint32_t)((int8_t)(r >> 8) * 256)), bf16_high(y), sum);
            }
        }
        DT_UNROLL
        for (int n = LANES / 2; n > 0; n /= 2)
            sum += shuffle_xor(sum, n);
        if (unit == 0 && row < T)
            p.mean[i] = sum;
    }
    attention_clear(p.dq, T, p.T_cap, p.heads, D);
    attention_clear(p.dk, T, p.T_cap, p.kv_heads, D);
    attention_clear(p.dv, T, p.T_cap, p.kv_heads, D);
}
#endif
