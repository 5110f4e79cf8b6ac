/* Attention backward for Hopper. The arithmetic is that of attention_backward.cuh; the work is divided differently.
 *
 * Three warpgroups. The first makes S and P, the second dP and dS. Of the third, two threads (the loaders) start the
 * bulk copies and, in blocks of keys, one warp (the teller) fetches lse and mean of the query tiles. Two tiles X and Y
 * stay, tiles U and W are walked, two stages of each.
 *
 *     blocks of keys     X, Y = K, V    U, W = Q, dO    S^T = X U^T, dP^T = Y W^T    dV += P^T W, dK += dS^T U
 *     blocks of queries  X, Y = Q, dO   U, W = K, V     S = X U^T, dP = Y W^T        dQ += dS U
 *
 * Everything is handed over by barriers in shared memory, so that the first warpgroup works up to a tile ahead and the
 * products of one overlap the elementwise part of the other. */
#ifndef DT_CUDA_ATTENTION_BACKWARD_SM90_CUH
#define DT_CUDA_ATTENTION_BACKWARD_SM90_CUH
#include "providers/cuda/attention_backward.cuh"
#include "providers/cuda/attention_forward_sm90.cuh"

enum { ATTENTION_SM90_THREADS = 384 };
enum { ATTENTION_WORK_REGISTERS = 240, ATTENTION_LOAD_REGISTERS = 24 };

template <int D> struct attention_sm90_shape {
    enum {
        TILE = ATTENTION_ROWS * D * 2,
        X = 0,
        Y = X + TILE,
        STREAM = Y + TILE,
        P = STREAM + 2 * 2 * TILE,
        FACTORS = P + 2 * 2 * ATTENTION_PANEL, /* lse and mean of a query tile, two stages */
        BARRIERS = FACTORS + 2 * 2 * ATTENTION_ROWS * 4,
        SHARED = BARRIERS + 9 * 8,
        PART = D < 128 ? D : 128,
        PARTS = D / PART
    };
};
/* Offsets of the barriers: X and Y are there; a stage of U and W (and its factors) is there, is free; P is there, free.
 */
enum {
    ATTENTION_BAR_STAY = 0,
    ATTENTION_BAR_FULL = 8,
    ATTENTION_BAR_FREE = 24,
    ATTENTION_BAR_P_FULL = 40,
    ATTENTION_BAR_P_FREE = 56
};

/* What a block works on: `tiles` tiles of U and W, from token `first` of the sample on, `step` tokens each. */
struct attention_walk {
    attention_tile t;
    int kv_head, first, step, tiles;
};

DT_DEVICE uint32_t attention_barrier(uint32_t barriers, int kind, int n)
{
    return barriers + (uint32_t)(kind + 8 * (n & 1));
}
DT_DEVICE void attention_wait(uint32_t barriers, int kind, int n)
{
    barrier_wait(attention_barrier(barriers, kind, n), n >> 1 & 1);
}
/* Until use n - 2 of the buffer is over. */
DT_DEVICE void attention_wait_free(uint32_t barriers, int kind, int n)
{
    if (n >= 2)
        attention_wait(barriers, kind, n - 2);
}
/* ---- loaders: one thread for X and U, one for Y and W ---- */
template <int D, bool KEYS, bool SECOND>
DT_DEVICE void attention_loader(const attention_params &p, const attention_maps &maps, const attention_walk &w,
                                uint32_t base)
{
    typedef attention_sm90_shape<D> shape;
    const tensor_map &stays = KEYS     ? (SECOND ? maps.v : maps.k)
                              : SECOND ? maps.d_o
                                       : maps.q,
                     &walked = KEYS     ? (SECOND ? maps.d_o : maps.q)
                               : SECOND ? maps.v
                                        : maps.k;
    const uint32_t barriers = base + shape::BARRIERS, stay = barriers + ATTENTION_BAR_STAY,
                   stream = base + shape::STREAM + (SECOND ? shape::TILE : 0);
    const int query_bytes = p.tokens * p.group * D * 2, key_bytes = shape::TILE, head = w.kv_head * p.group;
    barrier_expect(stay, KEYS ? key_bytes : query_bytes);
    attention_copy_tile<D>(base + (SECOND ? shape::Y : shape::X), stays, KEYS ? w.kv_head : head,
                           (int64_t)w.t.row0 + w.t.start, stay);
    for (int n = 0; n < w.tiles; n++) {
        const uint32_t full = attention_barrier(barriers, ATTENTION_BAR_FULL, n);
        attention_wait_free(barriers, ATTENTION_BAR_FREE, n);
        barrier_expect(full, KEYS ? query_bytes : key_bytes);
        attention_copy_tile<D>(stream + (uint32_t)((n & 1) * 2 * shape::TILE), walked, KEYS ? head : w.kv_head,
                               (int64_t)w.t.row0 + w.first + n * w.step, full);
    }
}
/* ---- teller: one warp ---- */
template <int D>
DT_DEVICE void attention_teller(const attention_params &p, const attention_walk &w, unsigned char *shared)
{
    typedef attention_sm90_shape<D> shape;
    const uint32_t barriers = shared_address(shared) + shape::BARRIERS;
    const int lane = (int)threadIdx.x & 31;
    for (int n = 0; n < w.tiles; n++) {
        float *to = (float *)(shared + shape::FACTORS) + (n & 1) * 128, x[4];
        DT_UNROLL
        for (int i = 0; i < 4; i++)
            x[i] = attention_factor(p, w.t, w.first + n * w.step, lane + 32 * (i & 1), w.kv_head, i < 2);
        attention_wait_free(barriers, ATTENTION_BAR_FREE, n);
        DT_UNROLL
        for (int i = 0; i < 4; i++)
            to[lane + 32 * i] = x[i];
        barrier_arrive(attention_barrier(barriers, ATTENTION_BAR_FULL, n));
    }
}

/* ---- the two that work ---- */

/* Rows of the last tile behind the sample become 0, so that what they hold, if only NaN, reaches nothing. */
template <int D, bool KEYS>
DT_DEVICE void attention_cut(const attention_params &p, const attention_walk &w, int n, uint32_t u, int group)
{
    const int rest = w.t.length - (w.first + n * w.step), rows = KEYS ? rest * p.group : rest;
    if (n < w.tiles - 1 || rest >= w.step)
        return;
    attention_zero_tail<D, 128>(u + (uint32_t)(group * attention_sm90_shape<D>::TILE), rows);
    fence_async_proxy();
    group_sync(3, 256);
}
template <int D>
DT_DEVICE void
attention_gradient_product(float (&gradient)[attention_sm90_shape<D>::PARTS][attention_sm90_shape<D>::PART / 2],
                           const float (&s)[32], uint32_t tile)
{
    typedef attention_sm90_shape<D> shape;
    uint32_t a[4][4];
    pack_operand<64>(a, s);
    mm_begin<ISA_WGMMA>();
    DT_UNROLL
    for (int part = 0; part < shape::PARTS; part++)
        mm_rs<ISA_WGMMA, shape::PART, 4, MN_MAJOR>(
            gradient[part], a, tile + (uint32_t)(part * (shape::PART / 64)) * ATTENTION_PANEL, ATTENTION_PANEL, true);
    mm_commit<ISA_WGMMA>();
    mm_wait<ISA_WGMMA, 0>();
    DT_UNROLL
    for (int part = 0; part < shape::PARTS; part++)
        mm_read<ISA_WGMMA>(gradient[part]);
}
template <int D> DT_DEVICE void attention_score_product(float (&s)[32], uint32_t stay, uint32_t walked)
{
    mm_begin<ISA_WGMMA>();
    mm_ss<ISA_WGMMA, 64, D / 16, K_MAJOR, K_MAJOR>(s, stay, ATTENTION_PANEL, walked, ATTENTION_PANEL, false);
    mm_commit<ISA_WGMMA>();
    mm_wait<ISA_WGMMA, 0>();
    mm_read<ISA_WGMMA>(s);
}

template <int D, bool KEYS>
DT_DEVICE void attention_first_group(const attention_params &p, const attention_walk &w, unsigned char *shared)
{
    typedef attention_sm90_shape<D> shape;
    const uint32_t base = shared_address(shared), barriers = base + shape::BARRIERS;
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32 % 4, row = 16 * warp + lane / 4;
    const int position[2] = {w.t.start + attention_token(p, row), w.t.start + attention_token(p, row + 8)};
    float lse[2] = {0.0f, 0.0f}, gradient[shape::PARTS][shape::PART / 2]; /* dV */
    if (!KEYS) {
        lse[0] = attention_factor(p, w.t, w.t.start, row, w.kv_head, true);
        lse[1] = attention_factor(p, w.t, w.t.start, row + 8, w.kv_head, true);
    }
    DT_UNROLL
    for (int part = 0; part < shape::PARTS; part++)
        mm_clear(gradient[part]);
    barrier_wait(barriers + ATTENTION_BAR_STAY, 0);
    for (int n = 0; n < w.tiles; n++) {
        const uint32_t u = base + shape::STREAM + (uint32_t)((n & 1) * 2 * shape::TILE);
        const int start = w.first + n * w.step;
        float s[32];
        attention_wait(barriers, ATTENTION_BAR_FULL, n);
        attention_cut<D, KEYS>(p, w, n, u, 0);
        attention_score_product<D>(s, base + shape::X, u);
        if (KEYS)
            attention_probabilities_trans(s, p, (const float *)(shared + shape::FACTORS) + (n & 1) * 128, w.t.start,
                                          start, warp);
        else
            attention_probabilities(s, lse, position, start, start + ATTENTION_ROWS - 1 > w.t.start, p.scale_log2);
        attention_wait_free(barriers, ATTENTION_BAR_P_FREE, n);
        attention_hand_over(base + shape::P + (uint32_t)((n & 1) * 2 * ATTENTION_PANEL), s);
        barrier_arrive(attention_barrier(barriers, ATTENTION_BAR_P_FULL, n));
        if (KEYS)
            attention_gradient_product<D>(gradient, s, u + shape::TILE);
        barrier_arrive(attention_barrier(barriers, ATTENTION_BAR_FREE, n));
    }
    if (KEYS) {
        group_sync(1, 128); /* the others do not read X any more either */
        attention_stage<ISA_WGMMA, shape::PARTS, shape::PART>(base + shape::X, gradient, 1.0f, 1.0f, warp);
        attention_store_keys<D>(base + shape::X, p.dv, (int64_t)w.t.row0 + w.t.start, w.t.length - w.t.start, w.kv_head,
                                warp);
    }
}

template <int D, bool KEYS>
DT_DEVICE void attention_second_group(const attention_params &p, const attention_walk &w, unsigned char *shared)
{
    typedef attention_sm90_shape<D> shape;
    const uint32_t base = shared_address(shared), barriers = base + shape::BARRIERS;
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32 % 4, row = 16 * warp + lane / 4;
    const int64_t row0 = (int64_t)w.t.row0 + w.t.start;
    const int rest = w.t.length - w.t.start;
    float mean[2] = {0.0f, 0.0f}, gradient[shape::PARTS][shape::PART / 2]; /* dK, dQ */
    if (!KEYS) {
        mean[0] = attention_factor(p, w.t, w.t.start, row, w.kv_head, false);
        mean[1] = attention_factor(p, w.t, w.t.start, row + 8, w.kv_head, false);
    }
    DT_UNROLL
    for (int part = 0; part < shape::PARTS; part++)
        mm_clear(gradient[part]);
    barrier_wait(barriers + ATTENTION_BAR_STAY, 0);
    for (int n = 0; n < w.tiles; n++) {
        const uint32_t u = base + shape::STREAM + (uint32_t)((n & 1) * 2 * shape::TILE),
                       from = base + shape::P + (uint32_t)((n & 1) * 2 * ATTENTION_PANEL);
        float s[32];
        attention_wait(barriers, ATTENTION_BAR_FULL, n);
        attention_cut<D, KEYS>(p, w, n, u, 1);
        attention_score_product<D>(s, base + shape::Y, u + shape::TILE);
        attention_wait(barriers, ATTENTION_BAR_P_FULL, n);
        if (KEYS) {
            const float *column = (const float *)(shared + shape::FACTORS) + (n & 1) * 128 + 64 + 2 * (lane & 3);
            attention_score_gradient(s, from, [=](int i) { return column[(i >> 2) * 8 + (i & 1)]; });
        } else
            attention_score_gradient(s, from, [=](int i) { return mean[i >> 1 & 1]; });
        barrier_arrive(attention_barrier(barriers, ATTENTION_BAR_P_FREE, n));
        attention_gradient_product<D>(gradient, s, u);
        barrier_arrive(attention_barrier(barriers, ATTENTION_BAR_FREE, n));
    }
    group_sync(2, 128);
    attention_stage<ISA_WGMMA, shape::PARTS, shape::PART>(base + shape::Y, gradient, p.scale, p.scale, warp);
    if (KEYS)
        attention_store_keys<D>(base + shape::Y, p.dk, row0, rest, w.kv_head, warp);
    else
        attention_store_queries<D>(base + shape::Y, p.dq, p, row0, rest < p.tokens ? rest : p.tokens, w.kv_head, 0,
                                   warp);
}

template <int D, bool KEYS>
DT_DEVICE void attention_backward_sm90_block(const attention_params &p, const attention_maps &maps, int slot,
                                             int kv_head)
{
    typedef attention_sm90_shape<D> shape;
    DT_SHARED(shared);
    const uint32_t base = shared_address(shared), barriers = base + shape::BARRIERS;
    attention_walk w;
    if (threadIdx.x == 0) {
        prefetch_map(maps.q);
        prefetch_map(maps.k);
        prefetch_map(maps.v);
        prefetch_map(maps.d_o);
    }
    if (!attention_find(w.t, p, slot, KEYS ? (int)ATTENTION_ROWS : p.tokens))
        return;
    w.kv_head = kv_head;
    w.first = KEYS ? w.t.start : 0;
    w.step = KEYS ? p.tokens : (int)ATTENTION_ROWS;
    const int end = KEYS || w.t.start + p.tokens > w.t.length ? w.t.length : w.t.start + p.tokens;
    w.tiles = (end - w.first + w.step - 1) / w.step;
    if (threadIdx.x == 0) {
        barrier_init(barriers + ATTENTION_BAR_STAY, 2);
        for (int i = 0; i < 2; i++) {
            barrier_init(attention_barrier(barriers, ATTENTION_BAR_FULL, i), KEYS ? 34 : 2);
            barrier_init(attention_barrier(barriers, ATTENTION_BAR_FREE, i), 256);
            barrier_init(attention_barrier(barriers, ATTENTION_BAR_P_FULL, i), 128);
            barrier_init(attention_barrier(barriers, ATTENTION_BAR_P_FREE, i), 128);
        }
        barrier_init_fence();
    }
    const int rows = p.tokens * p.group;
    if (rows < ATTENTION_ROWS) {
        for (int i = 0; i < (KEYS ? 4 : 2); i++)
            attention_zero_tail<D, ATTENTION_SM90_THREADS>(
                base + (KEYS ? shape::STREAM : shape::X) + (uint32_t)(i * shape::TILE), rows);
        fence_async_proxy();
    }
    block_sync();
    const int role = uniform((int)threadIdx.x / 128);
    if (role == 2) {
        fewer_registers<ATTENTION_LOAD_REGISTERS>();
        if (threadIdx.x == 256)
            attention_loader<D, KEYS, false>(p, maps, w, base);
        else if (threadIdx.x == 320)
            attention_loader<D, KEYS, true>(p, maps, w, base);
        else if (KEYS && threadIdx.x / 32 == 9)
            attention_teller<D>(p, w, shared);
    } else if (role == 1) {
        more_registers<ATTENTION_WORK_REGISTERS>();
        attention_second_group<D, KEYS>(p, w, shared);
    } else {
        more_registers<ATTENTION_WORK_REGISTERS>();
        attention_first_group<D, KEYS>(p, w, shared);
    }
}

template <int D>
DT_KERNEL(ATTENTION_SM90_THREADS, 1)
attention_backward_sm90_kernel(DT_GRID_CONSTANT attention_params p, DT_GRID_CONSTANT attention_maps maps,
                               int32_t key_slots, int32_t query_slots)
{
    if constexpr (DT_RUNS_HERE(ISA_WGMMA)) {
        int slot = (int)blockIdx.x / p.kv_heads, kv_head = (int)blockIdx.x % p.kv_heads;
        if (slot < key_slots) /* the first keys of a sample meet most queries, the last queries most keys */
            attention_backward_sm90_block<D, true>(p, maps, slot, kv_head);
        else
            attention_backward_sm90_block<D, false>(p, maps, key_slots + query_slots - 1 - slot, kv_head);
    }
}
#endif
