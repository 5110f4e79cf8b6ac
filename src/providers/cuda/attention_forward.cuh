/* Attention forward on tiles of 64 query rows a warpgroup and 64 keys; the running softmax of Dao, arXiv:2307.08691. */
#ifndef DT_CUDA_ATTENTION_FORWARD_CUH
#define DT_CUDA_ATTENTION_FORWARD_CUH
#include "providers/cuda/attention_common.cuh"

/* One warpgroup and single buffers: two blocks a multiprocessor, which hide each other's latency (short samples).
 * Two warpgroups and double buffers: half the reads of keys and values (long samples; Hopper's shared memory). */
template <int D, int GROUPS> struct attention_forward_shape {
    enum {
        TILE = ATTENTION_ROWS * D * 2,
        STAGES = GROUPS,
        Q = 0,
        K = Q + GROUPS * TILE,
        V = K + STAGES * TILE,
        SHARED = V + STAGES * TILE,
        THREADS = GROUPS * 128,
        PART = D < 128 ? D : 128, /* columns of a product */
        PARTS = D / PART
    };
};

/* Scores of 64 keys from key0 on to weights, not yet divided by their sum; rows 0 (lane/4) and 1 (+ 8) are at
 * `position`. */
template <int PARTS, int N>
DT_DEVICE void attention_softmax(float (&s)[32], float (&o)[PARTS][N / 2], float (&maximum)[2], float (&sum)[2],
                                 const int (&position)[2], int key0, bool masked, float scale)
{
    const int column = 2 * ((int)threadIdx.x & 3);
    if (masked) {
        DT_UNROLL
        for (int i = 0; i < 32; i++)
            if (key0 + (i >> 2) * 8 + column + (i & 1) > position[i >> 1 & 1])
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
        m = fmaxf(maximum[h], m * scale);
        factor[h] = exp2_fast(maximum[h] - m);
        maximum[h] = m;
        shift[h] = -m;
        sum[h] *= factor[h];
    }
    DT_UNROLL
    for (int i = 0; i < 32; i++)
        s[i] = exp2_fast(fmaf(s[i], scale, shift[i >> 1 & 1]));
    DT_UNROLL
    for (int part = 0; part < PARTS; part++) {
        DT_UNROLL
        for (int i = 0; i < N / 2; i++)
            o[part][i] *= factor[i >> 1 & 1];
    }
}

/* o += weights V. The sum is that of the weights as they are rounded here: o is then an exact mean of values, with
 * weights that are off by a rounding, and sum do.o fits the score gradients it is subtracted from. */
template <int ISA, int PARTS, int N>
DT_DEVICE void attention_times_values(float (&o)[PARTS][N / 2], float (&sum)[2], const float (&s)[32], uint32_t v)
{
    uint32_t a[4][4];
    pack_operand<64>(a, s);
    mm_begin<ISA>();
    DT_UNROLL
    for (int part = 0; part < PARTS; part++)
        mm_rs<ISA, N, 4, MN_MAJOR>(o[part], a, v + (uint32_t)(part * (N / 64)) * ATTENTION_PANEL, ATTENTION_PANEL,
                                   true);
    mm_commit<ISA>();
    DT_UNROLL
    for (int i = 0; i < 16; i++)
        sum[i & 1] += bf16_low(a[i >> 2][i & 3]) + bf16_high(a[i >> 2][i & 3]);
    mm_wait<ISA, 0>();
    DT_UNROLL
    for (int part = 0; part < PARTS; part++)
        mm_read<ISA>(o[part]);
}

/* What rounding o to bf16 loses would be the largest error of the backward: where one key has nearly all the weight,
 * its score gradient is the small difference of two large sums, do.v and do.o. So the next eight bits of o are kept
 * too. Of a row, first those of all columns 8 j, 8 j + 1, then 8 j + 2, 8 j + 3, ...: what a thread holds lies
 * together. */
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
            *(uint4 *)(to + part * (N / 4) + 16 * n) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

/* What arrived by copy_async16 is there for all threads and for wgmma. */
template <int PENDING> DT_DEVICE void attention_arrived()
{
    copy_wait<PENDING>();
    fence_async_proxy();
    block_sync();
}

template <int ISA, int D, int GROUPS> DT_DEVICE void attention_forward_tile(const attention_params &p)
{
    typedef attention_forward_shape<D, GROUPS> shape;
    DT_SHARED(shared);
    const uint32_t base = shared_address(shared), k = base + shape::K, v = base + shape::V;
    const int thread = (int)threadIdx.x, group = uniform(thread / 128), warp = thread / 32 % 4, lane = thread & 31;
    const int kv_head = (int)blockIdx.x % p.kv_heads, slots = (int)gridDim.x / p.kv_heads,
              slot = slots - 1 - (int)blockIdx.x / p.kv_heads; /* the longest tiles of a sample first */
    attention_tile t;
    if (!attention_find(t, p, slot, GROUPS * p.tokens))
        return;
    const int start = t.start + group * p.tokens, tokens = t.length - start; /* of this warpgroup; may be none */
    const uint32_t q = base + shape::Q + (uint32_t)group * shape::TILE;
    const int last =
        t.offset + (int)(t.start + GROUPS * p.tokens < t.length ? t.start + GROUPS * p.tokens : t.length) - 1;
    const int tiles = last / ATTENTION_ROWS + 1;

    attention_load_queries<D, 128>(q, p.q, p, (int64_t)t.row0 + start, tokens < p.tokens ? tokens : p.tokens, kv_head,
                                   thread % 128);
    attention_load_keys<D, shape::THREADS>(k, p.k, t.key_row0, t.keys, kv_head, thread);
    copy_commit();
    attention_load_keys<D, shape::THREADS>(v, p.v, t.key_row0, t.keys, kv_head, thread);
    copy_commit();

    float o[shape::PARTS][shape::PART / 2], maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    DT_UNROLL
    for (int part = 0; part < shape::PARTS; part++)
        mm_clear(o[part]);
    const int row = 16 * warp + lane / 4;
    const int position[2] = {t.offset + start + attention_token(p, row),
                             t.offset + start + attention_token(p, row + 8)};

    for (int n = 0; n < tiles; n++) {
        const int key0 = n * ATTENTION_ROWS, next = key0 + ATTENTION_ROWS;
        const uint32_t stage = (uint32_t)(n % shape::STAGES) * shape::TILE,
                       other = (uint32_t)((n + 1) % shape::STAGES) * shape::TILE;
        const bool works = tokens > 0 && key0 <= t.offset + start + p.tokens - 1,
                   masked = key0 + ATTENTION_ROWS - 1 > t.offset + start;
        float s[32];
        if (shape::STAGES == 2) {
            attention_arrived<0>();
            if (n + 1 < tiles) {
                attention_load_keys<D, shape::THREADS>(k + other, p.k, t.key_row0 + next, t.keys - next, kv_head,
                                                       thread);
                attention_load_keys<D, shape::THREADS>(v + other, p.v, t.key_row0 + next, t.keys - next, kv_head,
                                                       thread);
            }
            copy_commit();
        } else
            attention_arrived<1>();
        if (works) {
            mm_begin<ISA>();
            mm_ss<ISA, 64, D / 16, K_MAJOR, K_MAJOR>(s, q, ATTENTION_PANEL, k + stage, ATTENTION_PANEL, false);
            mm_commit<ISA>();
            mm_wait<ISA, 0>();
            mm_read<ISA>(s);
        }
        if (shape::STAGES == 1) {
            block_sync();
            if (n + 1 < tiles)
                attention_load_keys<D, shape::THREADS>(k, p.k, t.key_row0 + next, t.keys - next, kv_head, thread);
            copy_commit();
        }
        if (works)
            attention_softmax<shape::PARTS, shape::PART>(s, o, maximum, sum, position, key0, masked, p.scale_log2);
        if (shape::STAGES == 1)
            attention_arrived<1>();
        if (works)
            attention_times_values<ISA, shape::PARTS, shape::PART>(o, sum, s, v + stage);
        if (shape::STAGES == 1) {
            block_sync();
            if (n + 1 < tiles)
                attention_load_keys<D, shape::THREADS>(v, p.v, t.key_row0 + next, t.keys - next, kv_head, thread);
            copy_commit();
        }
    }
    DT_UNROLL
    for (int h = 0; h < 2; h++) {
        sum[h] += shuffle_xor(sum[h], 1);
        sum[h] += shuffle_xor(sum[h], 2);
    }
    copy_wait<0>();
    block_sync(); /* nobody reads the queries any more */
    attention_stage<ISA, shape::PARTS, shape::PART>(q, o, 1.0f / sum[0], 1.0f / sum[1], warp);
    attention_store_queries<D>(q, p.o, p, (int64_t)t.row0 + start, tokens < p.tokens ? tokens : p.tokens, kv_head, 0,
                               warp);
    if (!p.lse)
        return;
    DT_UNROLL
    for (int h = 0; h < 2; h++) {
        int token = attention_token(p, row + 8 * h), head = row + 8 * h - token * p.group;
        if (token >= p.tokens || token >= tokens)
            continue;
        int64_t at = ((int64_t)t.row0 + start + token) * p.heads + kv_head * p.group + head;
        if ((lane & 3) == 0)
            p.lse[at] = maximum[h] + log2f(sum[h]);
        attention_store_rest<shape::PARTS, shape::PART>(p.rest + at * D + (lane & 3) * (D / 4), o, h);
    }
}

template <int ISA, int D, int GROUPS>
DT_KERNEL(GROUPS * 128, 3 - GROUPS)
attention_forward_kernel(DT_GRID_CONSTANT attention_params p)
{
    if constexpr (DT_RUNS_HERE(ISA)) {
        attention_forward_tile<ISA, D, GROUPS>(p);
        attention_clear(p.o, p.q_cu[p.n_seq_cap], p.T_cap, p.heads, D);
    }
}
#endif
