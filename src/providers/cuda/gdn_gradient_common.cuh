/* What the roles of the gradient kernel share: its shared memory, its barriers, the head they work on. */
#ifndef DT_CUDA_GDN_GRADIENT_COMMON_CUH
#define DT_CUDA_GDN_GRADIENT_COMMON_CUH
#include "providers/cuda/gdn_slab.cuh"

enum { GRADIENT_THREADS = 4 * 128, FEEDERS = 128 };
enum { SCORES_REGISTERS = 152, QUERIES_REGISTERS = 160, KEYS_REGISTERS = 160, FEED_REGISTERS = 40 }; /* 512 in all */

/* One value head of a chunk; rows == 0: there are no more. */
struct gradient_item {
    int row0, rows, chunk, key_head, head, flags;
};
enum { HEAD_FIRST = 4, HEAD_LAST = 8 }; /* flags beside those of the chunk: of the value heads of the key head */
DT_DEVICE int64_t image_of(const gdn_params &p, const gradient_item &it)
{
    return (int64_t)it.chunk * p.value_heads + it.head;
}
struct gradient_message {
    gdn_vectors v;
    gradient_item item;
};
/* Per-row parts of dg and dbeta. */
struct gradient_sums {
    float aq[CHUNK], ak[CHUNK]; /* rowsum of (Aq o Q), (Ak o K) */
    float e_rows[CHUNK];        /* sum_j e_ij beta_j */
    float n_rows[CHUNK];        /* rk_i sum_j N_ij (k_i.k_j) */
    float x[CHUNK];             /* rowsum of (At^T K o dX) */
    float e_cols[4][CHUNK];     /* sum_i e_ij, a warp's 16 rows each */
    float states[2];            /* <S0, dS1>, a feeder warp's part each */
};
/* Barriers, and who arrives. Those of a head first, then those of a key head. A barrier tells only the parity of its
 * last phase: where one who waits could fall two phases behind, two take turns. */
enum {
    GB_LOADED_S = 0,   /* S0, dW: copy engine */
    GB_LOADED_V = 1,   /* V, dO, dS1: copy engine */
    GB_LOADED_AT = 2,  /* At: copy engine */
    GB_READY_S = 3,    /* message, S0, dW, Q and K are fit for use: feeders */
    GB_READY_V = 4,    /* V, dO, dS1 are: feeders */
    GB_WV = 5,         /* Wv: queries */
    GB_DX = 6,         /* dX: keys */
    GB_D = 7,          /* D: scores */
    GB_T = 8,          /* T: queries */
    GB_FREE_S = 9,     /* S0, dW: queries, keys, feeders */
    GB_FREE_V = 10,    /* V, dO, dS1: queries, keys, scores, feeders */
    GB_FREE_AT = 11,   /* (two) At: scores, keys */
    GB_SUMS = 13,      /* (two) the sums of dg and dbeta are complete: scores, queries, keys */
    GB_LOADED_QK = 15, /* (two) Q, K: copy engine */
    GB_FREE_QK = 17,   /* (two) queries, keys */
    GB_DQ = 19,        /* sum of Dq: scores */
    GB_Y = 20,         /* sum of Y: scores */
    GB_FREE_DQ_Y = 21, /* both: queries, keys */
    GB_FREE_Q = 22,    /* the Q tile, for dq: keys */
    GB_FREE_K = 23,    /* the K tile, for dk: queries */
    GB_COUNT = 24
};
DT_DEVICE int gradient_arrivals(int which)
{
    switch (which) {
    case GB_LOADED_S:
    case GB_LOADED_V:
    case GB_LOADED_AT:
    case GB_LOADED_QK:
    case GB_LOADED_QK + 1: return 1;
    case GB_FREE_S: return 2 * 128 + FEEDERS - 32; /* the first feeder warp only loads */
    case GB_FREE_V: return 3 * 128 + FEEDERS - 32;
    case GB_SUMS:
    case GB_SUMS + 1: return 3 * 128;
    case GB_FREE_AT:
    case GB_FREE_AT + 1:
    case GB_FREE_QK:
    case GB_FREE_QK + 1:
    case GB_FREE_DQ_Y: return 2 * 128;
    default: return 128;
    }
}
enum {
    GRAD_QK = 0,             /* Q, K of two key heads */
    GRAD_V = 4 * ROWS_BYTES, /* V, then Wv */
    GRAD_DO = GRAD_V + ROWS_BYTES,
    GRAD_DW = GRAD_DO + ROWS_BYTES,
    GRAD_DX = GRAD_DW + ROWS_BYTES,
    GRAD_S = GRAD_DX + ROWS_BYTES,  /* S0 [V][K] */
    GRAD_DS = GRAD_S + STATE_BYTES, /* dS1 [V][K] */
    GRAD_AT = GRAD_DS + STATE_BYTES,
    GRAD_PQ = GRAD_AT + AT_BYTES, /* low(Q K^T); after the last head: the sum of Y */
    GRAD_DT = GRAD_PQ + AT_BYTES, /* D, then T; after the last head: the sum of Dq */
    GRAD_MESSAGES = GRAD_DT + AT_BYTES,
    GRAD_SUMS = GRAD_MESSAGES + 2 * (int)sizeof(gradient_message),
    GRAD_BARRIERS = GRAD_SUMS + 2 * (int)sizeof(gradient_sums),
    GRADIENT_SHARED = GRAD_BARRIERS + 8 * GB_COUNT
};
DT_DEVICE uint32_t gradient_barrier(uint32_t base, int which)
{
    return base + GRAD_BARRIERS + 8 * (uint32_t)which;
}
/* Waits for phase `count` of a barrier: heads or key heads, counted from 0. */
DT_DEVICE void gradient_wait(uint32_t base, int which, int count)
{
    barrier_wait(gradient_barrier(base, which), count & 1);
}
/* The same of one of two barriers that take turns. */
DT_DEVICE void gradient_wait_turn(uint32_t base, int which, int count)
{
    barrier_wait(gradient_barrier(base, which + (count & 1)), count >> 1 & 1);
}
DT_DEVICE void gradient_arrive(uint32_t base, int which)
{
    barrier_arrive(gradient_barrier(base, which));
}
/* What this thread stored is for others' products or for the copy engine. */
DT_DEVICE void gradient_publish(uint32_t base, int which)
{
    fence_async_proxy();
    barrier_arrive(gradient_barrier(base, which));
}

/* Of the pair's Q and K. */
DT_DEVICE uint32_t q_tile_of(uint32_t base, int pair)
{
    return base + GRAD_QK + (uint32_t)(pair & 1) * 2 * ROWS_BYTES;
}
DT_DEVICE uint32_t k_tile_of(uint32_t base, int pair)
{
    return q_tile_of(base, pair) + ROWS_BYTES;
}

/* The head a role works on. */
struct gradient_head {
    uint32_t base, q, k;
    const gradient_message *message;
    const gdn_vectors *v;
    gradient_sums *sums;
    int n, pair;
    bool first, last, has_state, has_gradient, valid;
};
DT_DEVICE void head_start(gradient_head &h)
{
    DT_SHARED(shared);
    h.base = shared_address(shared);
    h.n = h.pair = -1;
}
/* Waits for the next head; h.valid == false: there is none. */
DT_DEVICE void head_next(gradient_head &h, const gdn_params &p)
{
    DT_SHARED(shared);
    h.n++;
    h.message = (const gradient_message *)(shared + GRAD_MESSAGES) + (h.n & 1);
    h.v = &h.message->v;
    h.sums = (gradient_sums *)(shared + GRAD_SUMS) + (h.n & 1);
    gradient_wait(h.base, GB_READY_S, h.n);
    int flags = uniform(h.message->item.flags);
    h.valid = uniform(h.message->item.rows) > 0;
    h.first = flags & HEAD_FIRST;
    h.last = flags & HEAD_LAST;
    h.has_state = !state_is_zero(p, flags);
    h.has_gradient = !gradient_is_zero(p, flags);
    h.pair += h.first ? 1 : 0;
    h.q = q_tile_of(h.base, h.pair);
    h.k = k_tile_of(h.base, h.pair);
}

/* The gradient of q or k goes out, with the projection of the l2 norm, d = H - norm^2 rowsum(H o x) x; through the tile
 * of x, of which each warp touches its own rows only. */
template <int ISA>
DT_DEVICE void finish_rows(const float (&h)[64], const gradient_item &it, uint32_t tile, const float (&norm)[2],
                           const gdn_rows &out, int width)
{
    int lane = (int)threadIdx.x & 31, row0 = 16 * slab_warp();
    float sum[2];
    dot_rows(sum, h, tile);
    DT_UNROLL
    for (int y = 0; y < 2; y++)
        sum[y] = shuffle_from(sum[y], (lane & 28) + (lane >> 3)) * norm[y] * norm[y]; /* from the diagonal */
    DT_UNROLL
    for (int s = 0; s < 8; s++) {
        uint32_t a[4];
        load_a<K_MAJOR>(a, tile, PANEL, s, row0);
        DT_UNROLL
        for (int c = 0; c < 4; c++)
            a[c] = pack_bf16(h[8 * s + 2 * c] - sum[c & 1] * bf16_low(a[c]),
                             h[8 * s + 2 * c + 1] - sum[c & 1] * bf16_high(a[c]));
        warp_sync();
        store_operand<ISA>(tile, PANEL, row0, s, a);
    }
    warp_sync();
    uint16_t *to = out.data + (int64_t)(it.row0 + row0 + (lane >> 4)) * out.row + (int64_t)it.key_head * out.head +
                   (lane & 15) * 8;
    DT_UNROLL
    for (int i = 0; i < 8; i++) {
        int row = row0 + 2 * i + (lane >> 4), unit = lane & 15;
        uint4 x = load_shared16(tile_unit(tile + (uint32_t)(unit >> 3) * PANEL, row, unit & 7));
        if (row < it.rows && unit * 8 < width)
            *(uint4 *)(to + 2 * i * out.row) = x;
    }
}
/* 1 / |x| of this thread's two rows, fetched before it is needed. */
DT_DEVICE void load_norms(float (&norm)[2], const float *norms, int heads, const gradient_item &it)
{
    DT_UNROLL
    for (int y = 0; y < 2; y++) {
        int row = slab_row() + 8 * y;
        norm[y] = row < it.rows ? norms[(int64_t)(it.row0 + row) * heads + it.key_head] : 0.0f;
    }
}
#endif
