/* Attention forward for Hopper: one or two warpgroups of 64 query rows over the same keys, bulk copies, and the scores
 * of the next keys made while the softmax of these runs. */
#ifndef DT_CUDA_ATTENTION_FORWARD_SM90_CUH
#define DT_CUDA_ATTENTION_FORWARD_SM90_CUH
#include "providers/cuda/attention_forward.cuh"

/* The tensors as the copy engine sees them: tiles of queries of all heads of a key head, tiles of keys. */
struct attention_maps {
    tensor_map q, k, v, d_o;
};

/* Two warpgroups: two stages of keys, and the scores of the next keys are made during the softmax. One, for packs with
 * fewer tiles than the card has multiprocessors twice: one stage, so that two blocks share a multiprocessor. */
template <int D, int GROUPS> struct attention_forward_sm90_shape {
    enum {
        TILE = ATTENTION_ROWS * D * 2,
        STAGES = GROUPS,
        Q = 0,
        K = Q + GROUPS * TILE,
        V = K + STAGES * TILE,
        BARRIERS = V + STAGES * TILE, /* K, V are there, two stages each; Q is */
        SHARED = BARRIERS + 5 * 8,
        THREADS = GROUPS * 128
    };
};

template <int D>
DT_DEVICE void attention_copy_tile(uint32_t to, const tensor_map &map, int head, int64_t row, uint32_t barrier)
{
    DT_UNROLL
    for (int i = 0; i < D / 64; i++)
        copy_box(to + (uint32_t)(i * ATTENTION_PANEL), map, 64 * i, head, (int)row, barrier);
}
/* Rows from `rows` on of a tile become 0; by THREADS threads. Copies bring what follows a sample, which may be NaN, and
 * leave rows as they are that no head has when the group does not divide 64. */
template <int D, int THREADS> DT_DEVICE void attention_zero_tail(uint32_t tile, int rows)
{
    for (int i = (int)threadIdx.x % THREADS; i < (ATTENTION_ROWS - rows) * (D / 8); i += THREADS)
        store_shared16(tile_unit(tile + (uint32_t)(i % (D / 8) / 8) * ATTENTION_PANEL, rows + i / (D / 8), i % 8),
                       make_uint4(0, 0, 0, 0));
}

/* What the steps of a block share. */
struct attention_keys {
    const attention_maps *maps;
    int64_t row0;
    int head, count, tiles; /* keys of the sample, tiles of them that are needed */
    uint32_t q, k, v, barriers;
};
template <int D, int STAGES, bool VALUES> DT_DEVICE void attention_copy_keys(const attention_keys &keys, int n)
{
    const uint32_t stage = (uint32_t)(n % STAGES) * (ATTENTION_ROWS * D * 2),
                   barrier = keys.barriers + (uint32_t)(n % STAGES * 8 + (VALUES ? 16 : 0));
    barrier_expect(barrier, ATTENTION_ROWS * D * 2);
    attention_copy_tile<D>((VALUES ? keys.v : keys.k) + stage, VALUES ? keys.maps->v : keys.maps->k, keys.head,
                           keys.row0 + n * ATTENTION_ROWS, barrier);
}
template <int D, int STAGES> DT_DEVICE void attention_begin_scores(float (&s)[32], const attention_keys &keys, int n)
{
    barrier_wait(keys.barriers + (uint32_t)(n % STAGES * 8), n / STAGES & 1);
    mm_begin<ISA_WGMMA>();
    mm_ss<ISA_WGMMA, 64, D / 16, K_MAJOR, K_MAJOR>(
        s, keys.q, ATTENTION_PANEL, keys.k + (uint32_t)(n % STAGES) * (ATTENTION_ROWS * D * 2), ATTENTION_PANEL, false);
    mm_commit<ISA_WGMMA>();
}
/* Adds the values of tile n (if not LAST, there are more) with the weights s, and waits for that and for scores that
 * were begun before. */
template <int D, int STAGES, bool LAST>
DT_DEVICE void attention_add_values(attention_state<D> &x, const float (&s)[32], const attention_keys &keys, int n)
{
    uint32_t a[4][4];
    pack_operand<64>(a, s);
    barrier_wait(keys.barriers + (uint32_t)(n % STAGES * 8 + 16), n / STAGES & 1);
    if (LAST && n == keys.tiles - 1 && keys.count < keys.tiles * ATTENTION_ROWS) {
        attention_zero_tail<D, STAGES * 128>(keys.v + (uint32_t)(n % STAGES) * (ATTENTION_ROWS * D * 2),
                                             keys.count - n * ATTENTION_ROWS);
        fence_async_proxy();
        block_sync();
    }
    attention_times_values<ISA_WGMMA>(x, a, keys.v + (uint32_t)(n % STAGES) * (ATTENTION_ROWS * D * 2));
    mm_wait<ISA_WGMMA, 0>();
    DT_UNROLL
    for (int part = 0; part < attention_state<D>::PARTS; part++)
        mm_read<ISA_WGMMA>(x.o[part]);
}
/* Tile n, with one stage. */
template <int D>
DT_DEVICE void attention_forward_whole_step(attention_state<D> &x, const attention_keys &keys, int n, bool masked,
                                            float scale)
{
    const bool copies = threadIdx.x == 0 && n + 1 < keys.tiles;
    float s[32];
    attention_begin_scores<D, 1>(s, keys, n);
    mm_wait<ISA_WGMMA, 0>();
    mm_read<ISA_WGMMA>(s);
    block_sync();
    if (copies)
        attention_copy_keys<D, 1, false>(keys, n + 1);
    attention_softmax(s, x, n * ATTENTION_ROWS, masked, scale);
    attention_add_values<D, 1, true>(x, s, keys, n);
    block_sync();
    if (copies)
        attention_copy_keys<D, 1, true>(keys, n + 1);
}
/* Tile n, whose scores s holds; leaves those of the next. */
template <int D, bool MORE>
DT_DEVICE void attention_forward_step(float (&s)[32], attention_state<D> &x, const attention_keys &keys, int n,
                                      bool masked, float scale)
{
    float next[32];
    block_sync(); /* nobody reads keys n and values n - 1 any more */
    if (threadIdx.x == 0 && MORE) {
        attention_copy_keys<D, 2, true>(keys, n + 1);
        if (n + 2 < keys.tiles)
            attention_copy_keys<D, 2, false>(keys, n + 2);
    }
    if (MORE)
        attention_begin_scores<D, 2>(next, keys, n + 1);
    attention_softmax(s, x, n * ATTENTION_ROWS, masked, scale);
    attention_add_values<D, 2, !MORE>(x, s, keys, n);
    if (MORE) {
        mm_read<ISA_WGMMA>(next);
        DT_UNROLL
        for (int i = 0; i < 32; i++)
            s[i] = next[i];
    }
}

template <int D, int GROUPS>
DT_DEVICE void attention_forward_sm90_block(const attention_params &p, const attention_maps &maps)
{
    typedef attention_forward_sm90_shape<D, GROUPS> shape;
    DT_SHARED(shared);
    const uint32_t base = shared_address(shared);
    const int group = uniform((int)threadIdx.x / 128), kv_head = (int)blockIdx.x % p.kv_heads,
              slots = (int)gridDim.x / p.kv_heads,
              slot = slots - 1 - (int)blockIdx.x / p.kv_heads; /* the longest tiles of a sample first */
    attention_tile t;
    if (threadIdx.x == 0) {
        prefetch_map(maps.q);
        prefetch_map(maps.k);
        prefetch_map(maps.v);
    }
    if (!attention_find(t, p, slot, GROUPS * p.tokens))
        return;
    const int start = t.start + group * p.tokens, end = t.start + GROUPS * p.tokens, rows = p.tokens * p.group,
              tiles = (t.offset + (end < t.length ? end : t.length) - 1) / ATTENTION_ROWS + 1,
              unmasked = (t.offset + t.start + 1) / ATTENTION_ROWS; /* tiles of which all queries see all keys */
    const attention_place at = {t.row0, start, t.length - start, kv_head};
    const attention_keys keys = {&maps,           t.key_row0,      kv_head,
                                 t.keys,          tiles,           base + shape::Q + (uint32_t)group * shape::TILE,
                                 base + shape::K, base + shape::V, base + shape::BARRIERS};
    if (threadIdx.x == 0) {
        for (int i = 0; i < 5; i++)
            barrier_init(keys.barriers + (uint32_t)(8 * i), 1);
        barrier_init_fence();
    }
    if (rows < ATTENTION_ROWS) {
        for (int i = 0; i < GROUPS; i++)
            attention_zero_tail<D, shape::THREADS>(base + shape::Q + (uint32_t)(i * shape::TILE), rows);
        fence_async_proxy();
    }
    block_sync();
    if (threadIdx.x == 0) { /* a copy takes long to start: three threads share them */
        attention_copy_keys<D, shape::STAGES, false>(keys, 0);
        if (shape::STAGES > 1 && tiles > 1)
            attention_copy_keys<D, shape::STAGES, false>(keys, 1);
    } else if (threadIdx.x == 32) {
        barrier_expect(keys.barriers + 32, GROUPS * rows * D * 2);
        for (int i = 0; i < GROUPS; i++)
            attention_copy_tile<D>(base + shape::Q + (uint32_t)(i * shape::TILE), maps.q, kv_head * p.group,
                                   (int64_t)t.row0 + t.start + i * p.tokens, keys.barriers + 32);
    } else if (threadIdx.x == 64)
        attention_copy_keys<D, shape::STAGES, true>(keys, 0);
    attention_state<D> x;
    attention_start(x, p, t, start);
    barrier_wait(keys.barriers + 32, 0);
    if constexpr (shape::STAGES == 1) {
        for (int n = 0; n < tiles; n++)
            attention_forward_whole_step(x, keys, n, n >= unmasked, p.scale_log2);
    } else {
        float s[32];
        int n = 0;
        attention_begin_scores<D, 2>(s, keys, 0);
        mm_wait<ISA_WGMMA, 0>();
        mm_read<ISA_WGMMA>(s);
        for (; n < tiles - 1; n++)
            attention_forward_step<D, true>(s, x, keys, n, n >= unmasked, p.scale_log2);
        attention_forward_step<D, false>(s, x, keys, n, true, p.scale_log2);
    }
    /* all of the warpgroup have made their last scores: its queries may be written over */
    attention_finish<ISA_WGMMA>(x, p, at, keys.q);
}

template <int D, int GROUPS>
DT_KERNEL(GROUPS * 128, 3 - GROUPS)
attention_forward_sm90_kernel(DT_GRID_CONSTANT attention_params p, DT_GRID_CONSTANT attention_maps maps)
{
    if constexpr (DT_RUNS_HERE(ISA_WGMMA)) {
        attention_forward_sm90_block<D, GROUPS>(p, maps);
        attention_clear(p.o, p.q_cu[p.n_seq_cap], p.T_cap, p.heads, D);
    }
}
#endif
