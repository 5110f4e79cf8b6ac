/* Attention forward on tiles of 64 query rows a warpgroup and 64 keys; the running softmax of Dao, arXiv:2307.08691. */
#ifndef DT_CUDA_ATTENTION_FORWARD_CUH
#define DT_CUDA_ATTENTION_FORWARD_CUH
#include "providers/cuda/attention_common.cuh"

/* What a thread of a warpgroup has of 64 query rows: rows 0 (lane/4) and 1 (+ 8) of the warp's 16. */
template <int D> struct attention_state {
    enum { PART = D < 128 ? D : 128, PARTS = D / PART }; /* PART: columns of a product */
    float o[PARTS][PART / 2], maximum[2], sum[2];        /* o and sum are relative to 2^maximum */
    int position[2];
};
/* Where those rows are: `start` is the first token, `tokens` of which the sample still has (none if <= 0). */
struct attention_place {
    int64_t row0;
    int start, tokens, kv_head;
};
template <int D>
DT_DEVICE void attention_start(attention_state<D> &x, const attention_params &p, const attention_tile &t, int start)
{
    const int row = (int)threadIdx.x / 32 % 4 * 16 + ((int)threadIdx.x & 31) / 4;
    DT_UNROLL
    for (int h = 0; h < 2; h++) {
        x.maximum[h] = -INFINITY;
        x.sum[h] = 0.0f;
        x.position[h] = t.offset + start + attention_token(p, row + 8 * h);
    }
    DT_UNROLL
    for (int part = 0; part < attention_state<D>::PARTS; part++)
        mm_clear(x.o[part]);
}

/* Scores of 64 keys from key0 on to weights, not yet divided by their sum. */
template <int D>
DT_DEVICE void attention_softmax(float (&s)[32], attention_state<D> &x, int key0, bool masked, float scale)
{
    const int column = 2 * ((int)threadIdx.x & 3);
    if (masked) {
        DT_UNROLL
        for (int i = 0; i < 32; i++)
            if (key0 + (i >> 2) * 8 + column + (i & 1) > x.position[i >> 1 & 1])
                s[i] = -INFINITY;
    }
    float factor[2], shift[2];
    DT_UNROLL
    for (int h = 0; h < 2; h++) {
        float m = s[2 * h];
        DT_UNROLL
        for (int j = 0; j < 8; j++)
            m = fmaxf(m, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
        m = fmaxf(m, shuffle_xor(m, 1));
        m = fmaxf(m, shuffle_xor(m, 2));
        m = fmaxf(x.maximum[h], m * scale);
        factor[h] = exp2_fast(x.maximum[h] - m);
        x.maximum[h] = m;
        shift[h] = -m;
        x.sum[h] *= factor[h];
    }
    DT_UNROLL
    for (int i = 0; i < 32; i++)
        s[i] = exp2_fast(fmaf(s[i], scale, shift[i >> 1 & 1]));
    DT_UNROLL
    for (int part = 0; part < attention_state<D>::PARTS; part++) {
        DT_UNROLL
        for (int i = 0; i < attention_state<D>::PART / 2; i++)
            x.o[part][i] *= factor[i >> 1 & 1];
    }
}

/* Starts o += weights V. The sum is that of the weights as they are rounded here: o is then an exact mean of values,
 * with weights that are off by a rounding, and sum do.o fits the score gradients it is subtracted from. */
template <int ISA, int D>
DT_DEVICE void attention_times_values(attention_state<D> &x, const uint32_t (&a)[4][4], uint32_t v)
{
    enum { PART = attention_state<D>::PART };
    mm_begin<ISA>();
    DT_UNROLL
    for (int part = 0; part < attention_state<D>::PARTS; part++)
        mm_rs<ISA, PART, 4, MN_MAJOR>(x.o[part], a, v + (uint32_t)(part * (PART / 64)) * ATTENTION_PANEL,
                                      ATTENTION_PANEL, true);
    mm_commit<ISA>();
    DT_UNROLL
    for (int i = 0; i < 16; i++)
        x.sum[i & 1] += bf16_low(a[i >> 2][i & 3]) + bf16_high(a[i >> 2][i & 3]);
}

/* What rounding o to bf16 loses would be the largest error of the backward: where one key has nearly all the weight,
 * its score gradient is the small difference of two large sums, do.v and do.o. So the next eight bits of o are kept
 * too. Each 64 columns of a row fill 64 bytes: first those of the columns 8 j, 8 j + 1, then of 8 j + 2, 8 j + 3, ...;
 * what a thread holds lies together, and so does what four threads store at once. */
template <int PARTS, int N> DT_DEVICE void attention_store_rest(uint8_t *to, const float (&o)[PARTS][N / 2], int h)
{
    DT_UNROLL
    for (int part = 0; part < PARTS; part++) {
        DT_UNROLL
        for (int n = 0; n < N / 64; n++) {
            uint32_t w[4];
            DT_UNROLL
            for (int i = 0; i < 4; i++) {
                const float *x = o[part] + 32 * n + 8 * i + 2 * h;
                w[i] = permute_bytes(permute_bytes(float_bits(x[0]), float_bits(x[1]), 0x51),
                                     permute_bytes(float_bits(x[4]), float_bits(x[5]), 0x51), 0x5410);
            }
            *(uint4 *)(to + part * N + 64 * n) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

/* Writes o, lse and the rest; `tile` is scratch of the warpgroup. */
template <int ISA, int D>
DT_DEVICE void attention_finish(attention_state<D> &x, const attention_params &p, const attention_place &at,
                                uint32_t tile)
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32 % 4, row = 16 * warp + lane / 4;
    DT_UNROLL
    for (int h = 0; h < 2; h++) {
        x.sum[h] += shuffle_xor(x.sum[h], 1);
        x.sum[h] += shuffle_xor(x.sum[h], 2);
    }
    attention_stage<ISA, attention_state<D>::PARTS, attention_state<D>::PART>(tile, x.o, rcp_fast(x.sum[0]),
                                                                              rcp_fast(x.sum[1]), warp);
    attention_store_queries<D>(tile, p.o, p, at.row0 + at.start, at.tokens < p.tokens ? at.tokens : p.tokens,
                               at.kv_head, 0, warp);
    if (!p.lse)
        return;
    DT_UNROLL
    for (int h = 0; h < 2; h++) {
        int token = attention_token(p, row + 8 * h), head = row + 8 * h - token * p.group;
        if (token >= p.tokens || token >= at.tokens)
            continue;
        int64_t to = (at.row0 + at.start + token) * p.heads + at.kv_head * p.group + head;
        if ((lane & 3) == 0)
            p.lse[to] = x.maximum[h] + log2f(x.sum[h]);
        attention_store_rest<attention_state<D>::PARTS, attention_state<D>::PART>(p.rest + to * D + (lane & 3) * 16,
                                                                                  x.o, h);
    }
}

/* ---- mma.sync: four warps and single buffers; two blocks a multiprocessor hide each other's latency ---- */
enum { ATTENTION_FORWARD_THREADS = 128 };
template <int D> struct attention_forward_shape {
    enum { TILE = ATTENTION_ROWS * D * 2, Q = 0, K = Q + TILE, V = K + TILE, SHARED = V + TILE };
};

/* What arrived by copy_async16 is there for all threads. */
template <int PENDING> DT_DEVICE void attention_arrived()
{
    copy_wait<PENDING>();
    block_sync();
}

template <int D> DT_DEVICE void attention_forward_tile(const attention_params &p)
{
    typedef attention_forward_shape<D> shape;
    DT_SHARED(shared);
    const uint32_t q = shared_address(shared) + shape::Q, k = shared_address(shared) + shape::K,
                   v = shared_address(shared) + shape::V;
    const int thread = (int)threadIdx.x, kv_head = (int)blockIdx.x % p.kv_heads, slots = (int)gridDim.x / p.kv_heads,
              slot = slots - 1 - (int)blockIdx.x / p.kv_heads; /* the longest tiles of a sample first */
    attention_tile t;
    if (!attention_find(t, p, slot, p.tokens))
        return;
    const int tokens = t.length - t.start < p.tokens ? t.length - t.start : p.tokens,
              tiles = (t.offset + t.start + tokens - 1) / ATTENTION_ROWS + 1;
    const attention_place at = {t.row0, t.start, tokens, kv_head};
    attention_load_queries<D, ATTENTION_FORWARD_THREADS>(q, p.q, p, (int64_t)t.row0 + t.start, tokens, kv_head, thread);
    attention_load_keys<D, ATTENTION_FORWARD_THREADS>(k, p.k, t.key_row0, t.keys, kv_head, thread);
    copy_commit();
    attention_load_keys<D, ATTENTION_FORWARD_THREADS>(v, p.v, t.key_row0, t.keys, kv_head, thread);
    copy_commit();
    attention_state<D> x;
    attention_start(x, p, t, t.start);
    for (int n = 0; n < tiles; n++) {
        const int key0 = n * ATTENTION_ROWS, next = key0 + ATTENTION_ROWS;
        float s[32];
        uint32_t a[4][4];
        attention_arrived<1>();
        mm_ss<ISA_MMA, 64, D / 16, K_MAJOR, K_MAJOR>(s, q, ATTENTION_PANEL, k, ATTENTION_PANEL, false);
        block_sync();
        if (n + 1 < tiles)
            attention_load_keys<D, ATTENTION_FORWARD_THREADS>(k, p.k, t.key_row0 + next, t.keys - next, kv_head,
                                                              thread);
        copy_commit();
        attention_softmax(s, x, key0, next - 1 > t.offset + t.start, p.scale_log2);
        pack_operand<64>(a, s);
        attention_arrived<1>();
        attention_times_values<ISA_MMA>(x, a, v);
        block_sync();
        if (n + 1 < tiles)
            attention_load_keys<D, ATTENTION_FORWARD_THREADS>(v, p.v, t.key_row0 + next, t.keys - next, kv_head,
                                                              thread);
        copy_commit();
    }
    copy_wait<0>();
    attention_finish<ISA_MMA>(x, p, at, q);
}

template <int D> DT_KERNEL(ATTENTION_FORWARD_THREADS, 2) attention_forward_kernel(DT_GRID_CONSTANT attention_params p)
{
    attention_forward_tile<D>(p);
    attention_clear(p.o, p.q_cu[p.n_seq_cap], p.T_cap, p.heads, D);
}
#endif
