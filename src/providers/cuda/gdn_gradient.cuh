/* All gradients that are local to a chunk once S0, dS1 and dW = dv are known: dq, dk, dg, dbeta.
 *
 * A block takes (chunk, key head) items and loops over the value heads of the key head, so that dq and dk are summed
 * in a fixed order without atomics. Three warpgroups, A, Q and K, work through five phases with a block barrier
 * between:
 *
 *     phase   A                               Q                               K
 *     1       Q K^T, K K^T (once per item),   Wv = V - diag(gamma rk) K S0,   last item's Hk += Y K + Y^T K, out
 *             R = low(QK^T) At                over V
 *     2       dP = dO Wv^T -> e, D            Hq = diag(s gamma rq) dO S0^T   dX = diag(eta) Wv dS1^T -> hi + lo
 *     3       Dq = low(D At^T), <S0,dS1>      T1 = K dX^T -> x, T             Hk = -diag(gamma rk) dW S0^T
 *     4       N = -slow(At^T T At^T) -> Y,    Hq += Dq K, out                 Hk += Dq^T Q + At diag(beta) dX
 *             dg, dbeta
 *
 * with T = low(low(QK^T)^T D + T1 diag(beta)), Y = diag(beta rk) N, D = s rq_i E_ij beta_j dP_ij, e = s rq_i E_ij R_ij
 * dP_ij. dX is kept as the sum of two bf16: with one rounding dg of short samples misses its tolerance. The next item's
 * loads start as soon as the last reader of a tile has passed: after phase 3, after phase 4. */
#ifndef DT_CUDA_GDN_GRADIENT_CUH
#define DT_CUDA_GDN_GRADIENT_CUH
#include "providers/cuda/gdn_chain.cuh"

enum { GRADIENT_THREADS = 384, PARTIAL_BYTES = 2 * CHUNK * WIDTH * 4 };
enum {
    GRAD_QK = 0,             /* Q, K; then the same again: dX hi, lo. The two pairs swap for every item */
    GRAD_V = 4 * ROWS_BYTES, /* V, then Wv */
    GRAD_DO = GRAD_V + ROWS_BYTES,
    GRAD_DW = GRAD_DO + ROWS_BYTES,
    GRAD_S = GRAD_DW + ROWS_BYTES,  /* S0 [V][K] */
    GRAD_DS = GRAD_S + STATE_BYTES, /* dS1 [V][K] */
    GRAD_AT = GRAD_DS + STATE_BYTES,
    GRAD_PQ = GRAD_AT + AT_BYTES, /* low(Q K^T) */
    GRAD_D = GRAD_PQ + AT_BYTES,  /* D, then Y until phase 2 of the next item */
    GRAD_DQ = GRAD_D + AT_BYTES,  /* Dq; with the next, in phase 1: dk on its way out */
    GRAD_T = GRAD_DQ + AT_BYTES,
    GRAD_VECTORS = GRAD_T + AT_BYTES,
    GRAD_SUMS = GRAD_VECTORS + 2 * (int)sizeof(gdn_vectors)
};
struct gradient_sums {
    float aq[CHUNK], ak[CHUNK]; /* rowsum of (Hq o Q), (Hk o K) after phases 2 and 3 */
    float e_rows[CHUNK];        /* sum_j e_ij beta_j */
    float n_rows[CHUNK];        /* rk_i sum_j N_ij (k_i.k_j) */
    float e_cols[4][CHUNK];     /* sum_i e_ij, a warp's 16 rows each */
    float x_cols[4][CHUNK];     /* sum_i At_ij T1_ij */
    float states[4];            /* <S0, dS1>, a warp's part each */
};
enum { GRAD_BARRIER = GRAD_SUMS + (int)sizeof(gradient_sums), GRADIENT_SHARED = GRAD_BARRIER + 16 };

/* Where a thread of a warpgroup stands in a result: its rows, its first column. */
DT_DEVICE int slab_warp()
{
    return ((int)threadIdx.x >> 5) & 3;
}
DT_DEVICE int slab_row()
{
    return 16 * slab_warp() + (((int)threadIdx.x & 31) >> 2);
}
DT_DEVICE int slab_column()
{
    return 2 * ((int)threadIdx.x & 3);
}

/* The address of the pair of columns that registers 4j + 2y, 4j + 2y + 1 of this thread belong to. */
DT_DEVICE uint32_t pair_address(uint32_t tile, int j, int y)
{
    int swizzle = (slab_row() & 7) * 16;
    return tile + (uint32_t)(slab_row() * 128 + slab_column() * 2 + (swizzle ^ ((j & 7) * 16))) +
           (uint32_t)((j >> 3) * PANEL + y * 1024);
}
DT_DEVICE float row_total(float x)
{
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}
template <int N> DT_DEVICE void scale_rows(float (&d)[N], const float *factor, float sign)
{
    float f[2] = {sign * factor[slab_row()], sign * factor[slab_row() + 8]};
    DT_UNROLL
    for (int c = 0; c < N; c++)
        d[c] *= f[c >> 1 & 1];
}
/* Row sums of (d o tile) to `sums`. */
DT_DEVICE void dot_rows(float *sums, const float (&d)[64], uint32_t tile)
{
    DT_UNROLL
    for (int y = 0; y < 2; y++) {
        float sum = 0.0f;
        DT_UNROLL
        for (int j = 0; j < 16; j++) {
            uint32_t pair = load_shared4(pair_address(tile, j, y));
            sum += d[4 * j + 2 * y] * bf16_low(pair) + d[4 * j + 2 * y + 1] * bf16_high(pair);
        }
        sum = row_total(sum);
        if (slab_column() == 0)
            sums[slab_row() + 8 * y] = sum;
    }
}
/* Column sums over this warp's 16 rows to `sums`: halving over the eight row lanes (14 shuffles). */
DT_DEVICE void column_totals(float *sums, const float (&d)[32])
{
    int lane = (int)threadIdx.x & 31;
    float c[16];
    DT_UNROLL
    for (int j = 0; j < 8; j++) {
        c[2 * j] = d[4 * j] + d[4 * j + 2];
        c[2 * j + 1] = d[4 * j + 1] + d[4 * j + 3];
    }
    DT_UNROLL
    for (int half = 8, bit = 16; half >= 2; half /= 2, bit /= 2) {
        DT_UNROLL
        for (int i = 0; i < half; i++) { /* lanes with the bit keep the upper half */
            float keep = lane & bit ? c[i + half] : c[i], give = lane & bit ? c[i] : c[i + half];
            c[i] = keep + shuffle_xor(give, bit);
        }
    }
    /* c[0], c[1]: the two columns of group j = the lane's row bits, highest first */
    int j = (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1);
    sums[8 * j + slab_column()] = c[0];
    sums[8 * j + slab_column() + 1] = c[1];
}
/* The part i >= j + BELOW of a 64 x 64 result, packed, to a tile. */
template <int ISA, int BELOW> DT_DEVICE void store_lower(uint32_t tile, const float (&d)[32], uint32_t (&a)[4][4])
{
    DT_UNROLL
    for (int s = 0; s < 4; s++) {
        DT_UNROLL
        for (int c = 0; c < 4; c++) {
            int i = slab_row() + 8 * (c & 1), j = 16 * s + 8 * (c >> 1) + slab_column() + BELOW;
            a[s][c] = pack_bf16(j <= i ? d[8 * s + 2 * c] : 0.0f, j + 1 <= i ? d[8 * s + 2 * c + 1] : 0.0f);
        }
        store_operand<ISA>(tile, PANEL, 16 * slab_warp(), s, a[s]);
    }
}

struct gradient_item {
    int64_t row0, image;
    int rows, key_head, head, flags, chunk;
    bool valid, first, last; /* of the value heads of the key head */
};
DT_DEVICE gradient_item gradient_at(const gdn_params &p, unsigned index, int member)
{
    gradient_item it;
    it.valid = index < (unsigned)(p.table.counts[0] * p.heads);
    it.chunk = it.valid ? (int)(index / (unsigned)p.heads) : 0;
    int4 rows = it.valid ? p.table.chunk[it.chunk] : make_int4(0, 0, 0, 0);
    it.row0 = rows.x;
    it.rows = rows.y;
    it.flags = rows.w;
    it.key_head = (int)(index % (unsigned)p.heads);
    it.head = it.key_head * p.group + member;
    it.image = (int64_t)it.chunk * p.value_heads + it.head;
    it.first = member == 0;
    it.last = member == p.group - 1;
    return it;
}
DT_DEVICE void load_pair(uint32_t tile, const gdn_params &p, const gradient_item &it)
{
    load_rows(tile, p.q, it.row0, it.rows, it.key_head, p.K, GRADIENT_THREADS);
    load_rows(tile + ROWS_BYTES, p.k, it.row0, it.rows, it.key_head, p.K, GRADIENT_THREADS);
}
DT_DEVICE void load_values(uint32_t base, const gdn_params &p, const gradient_item &it)
{
    load_rows(base + GRAD_V, p.v, it.row0, it.rows, it.head, p.V, GRADIENT_THREADS);
    load_rows(base + GRAD_DO, p.d_o, it.row0, it.rows, it.head, p.V, GRADIENT_THREADS);
    load_rows(base + GRAD_DW, p.dv, it.row0, it.rows, it.head, p.V, GRADIENT_THREADS);
    if (!state_is_zero(p, it.flags))
        load_image(base + GRAD_S, p.h + it.image * STATE_BYTES, STATE_BYTES, GRADIENT_THREADS);
    if (!gradient_is_zero(p, it.flags))
        load_image(base + GRAD_DS, p.dh + it.image * STATE_BYTES, STATE_BYTES, GRADIENT_THREADS);
}

/* ---- the steps of the phases; each is run by one warpgroup ---- */

/* Phase 1, Q: Wv over V. */
template <int ISA> DT_DEVICE void step_wv(uint32_t base, uint32_t k_tile, const gdn_vectors *v)
{
    float u[64];
    mm_begin<ISA>();
    mm_ss<ISA, 128, 8, K_MAJOR, K_MAJOR>(u, k_tile, PANEL, base + GRAD_S, STATE_PANEL, false);
    mm_commit<ISA>();
    mm_wait<ISA, 0>();
    scale_rows(u, v->gamma_rk, 1.0f);
    DT_UNROLL
    for (int part = 0; part < 4; part++) { /* loads of eight columns in flight together */
        uint32_t pairs[8];
        DT_UNROLL
        for (int c = 0; c < 8; c++)
            pairs[c] = load_shared4(pair_address(base + GRAD_V, 4 * part + (c >> 1), c & 1));
        DT_UNROLL
        for (int c = 0; c < 8; c++) {
            int n = 4 * (4 * part + (c >> 1)) + 2 * (c & 1);
            store_shared4(pair_address(base + GRAD_V, 4 * part + (c >> 1), c & 1),
                          pack_bf16(bf16_low(pairs[c]) - u[n], bf16_high(pairs[c]) - u[n + 1]));
        }
    }
}
/* Phase 2, A: dP becomes D, R becomes e; the sums of e. */
DT_DEVICE void step_d(float (&dp)[32], float (&r)[32], const gdn_vectors *v, gradient_sums *sums)
{
    DT_UNROLL
    for (int y = 0; y < 2; y++) {
        int i = slab_row() + 8 * y;
        float f = v->s_rq[i], G = v->G[i], row = 0.0f;
        DT_UNROLL
        for (int c = 0; c < 16; c++) {
            int n = 4 * (c >> 1) + 2 * y + (c & 1), j = 8 * (c >> 1) + slab_column() + (c & 1);
            float beta = v->beta[j], x = j <= i ? f * exp2_fast(G - v->G[j]) * dp[n] : 0.0f;
            r[n] *= x;
            dp[n] = x * beta;
            row += r[n] * beta;
        }
        row = row_total(row);
        if (slab_column() == 0)
            sums->e_rows[i] = row;
    }
    column_totals(sums->e_cols[slab_warp()], r);
}
/* Phase 2, K: dX as the sum of two bf16 tiles. */
template <int ISA> DT_DEVICE void step_dx(uint32_t base, uint32_t x_tiles, const gdn_vectors *v)
{
    float x[64];
    mm_begin<ISA>();
    mm_ss<ISA, 128, 8, K_MAJOR, MN_MAJOR>(x, base + GRAD_V, PANEL, base + GRAD_DS, STATE_PANEL, false);
    mm_commit<ISA>();
    mm_wait<ISA, 0>();
    scale_rows(x, v->eta, 1.0f);
    DT_UNROLL
    for (int j = 0; j < 16; j++) {
        DT_UNROLL
        for (int y = 0; y < 2; y++) {
            float low = x[4 * j + 2 * y], high = x[4 * j + 2 * y + 1];
            uint32_t pair = pack_bf16(low, high), at = pair_address(x_tiles, j, y);
            store_shared4(at, pair);
            store_shared4(at + ROWS_BYTES, pack_bf16(low - bf16_low(pair), high - bf16_high(pair)));
        }
    }
}
/* Phase 3, A: this warp's part of <S0, dS1>; both images have the same layout. */
DT_DEVICE void step_states(uint32_t base, gradient_sums *sums)
{
    float sum = 0.0f;
    DT_UNROLL
    for (int i = 0; i < STATE_BYTES / 16 / 128; i++) {
        uint32_t at = (uint32_t)(i * 128 + ((int)threadIdx.x & 127)) * 16u;
        uint4 x = load_shared16(base + GRAD_S + at), y = load_shared16(base + GRAD_DS + at);
        uint32_t a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
        DT_UNROLL
        for (int c = 0; c < 4; c++)
            sum += bf16_low(a[c]) * bf16_low(b[c]) + bf16_high(a[c]) * bf16_high(b[c]);
    }
    DT_UNROLL
    for (int n = 16; n; n /= 2)
        sum += shuffle_xor(sum, n);
    if (((int)threadIdx.x & 31) == 0)
        sums->states[slab_warp()] = sum;
}
/* Phase 3, Q: T. */
template <int ISA>
DT_DEVICE void step_t(uint32_t base, uint32_t k_tile, uint32_t x_tiles, bool has_gradient, const gdn_vectors *v,
                      gradient_sums *sums)
{
    float t[32];
    uint32_t packed[4][4];
    if (has_gradient) {
        float x[32];
        mm_begin<ISA>();
        mm_ss<ISA, 64, 8, K_MAJOR, K_MAJOR>(t, k_tile, PANEL, x_tiles, PANEL, false);
        mm_ss<ISA, 64, 8, K_MAJOR, K_MAJOR>(t, k_tile, PANEL, x_tiles + ROWS_BYTES, PANEL, true);
        mm_commit<ISA>();
        mm_wait<ISA, 0>();
        DT_UNROLL
        for (int j = 0; j < 8; j++) {
            DT_UNROLL
            for (int y = 0; y < 2; y++) {
                uint32_t pair = load_shared4(pair_address(base + GRAD_AT, j, y));
                x[4 * j + 2 * y] = bf16_low(pair) * t[4 * j + 2 * y];
                x[4 * j + 2 * y + 1] = bf16_high(pair) * t[4 * j + 2 * y + 1];
            }
        }
        column_totals(sums->x_cols[slab_warp()], x);
        scale_columns(t, v->beta);
    } else {
        mm_clear(t);
        if (threadIdx.x % 4 == 0 && (threadIdx.x & 31) / 4 < 8)
            for (int j = (int)(threadIdx.x & 31) / 4; j < CHUNK; j += 8)
                sums->x_cols[slab_warp()][j] = 0.0f;
    }
    mm_begin<ISA>();
    mm_ss<ISA, 64, 4, MN_MAJOR, MN_MAJOR>(t, base + GRAD_PQ, PANEL, base + GRAD_D, PANEL, true);
    mm_commit<ISA>();
    mm_wait<ISA, 0>();
    store_lower<ISA, 0>(base + GRAD_T, t, packed);
}
/* Phase 4, A: N, its row sums with K K^T, Y. */
template <int ISA>
DT_DEVICE void step_n(uint32_t base, const float (&kk)[32], const gdn_vectors *v, gradient_sums *sums)
{
    float n[32];
    uint32_t a[4][4];
    mm_begin<ISA>();
    mm_ss<ISA, 64, 4, MN_MAJOR, MN_MAJOR>(n, base + GRAD_AT, PANEL, base + GRAD_T, PANEL, false);
    mm_commit<ISA>();
    mm_wait<ISA, 0>();
    pack_operand<64>(a, n);
    mm_begin<ISA>();
    mm_rs<ISA, 64, 4, K_MAJOR>(n, a, base + GRAD_AT, PANEL, false);
    mm_commit<ISA>();
    mm_wait<ISA, 0>();
    DT_UNROLL
    for (int y = 0; y < 2; y++) {
        int i = slab_row() + 8 * y;
        float sum = 0.0f, f = -v->beta[i] * v->rk[i];
        DT_UNROLL
        for (int c = 0; c < 16; c++) {
            int at = 4 * (c >> 1) + 2 * y + (c & 1), j = 8 * (c >> 1) + slab_column() + (c & 1);
            sum += j < i ? n[at] * kk[at] : 0.0f;
            n[at] *= f;
        }
        sum = row_total(sum);
        if (slab_column() == 0)
            sums->n_rows[i] = -v->rk[i] * sum;
    }
    store_lower<ISA, 1>(base + GRAD_D, n, a);
}
/* Phase 4, K: Hk += Dq^T Q + At diag(beta) dX. */
template <int ISA>
DT_DEVICE void step_hk(float (&h)[64], uint32_t base, uint32_t q_tile, uint32_t x_tiles, bool has_gradient,
                       const gdn_vectors *v)
{
    uint32_t a[4][4];
    DT_UNROLL
    for (int s = 0; s < 4; s++) {
        load_a<K_MAJOR>(a[s], base + GRAD_AT, PANEL, s, 16 * slab_warp());
        DT_UNROLL
        for (int c = 0; c < 4; c++) {
            float2 f = *(const float2 *)(v->beta + 16 * s + 8 * (c >> 1) + slab_column());
            a[s][c] = pack_bf16(f.x * bf16_low(a[s][c]), f.y * bf16_high(a[s][c]));
        }
    }
    mm_begin<ISA>();
    mm_ss<ISA, 128, 4, MN_MAJOR, MN_MAJOR>(h, base + GRAD_DQ, PANEL, q_tile, PANEL, true);
    if (has_gradient)
        mm_rs<ISA, 128, 4, MN_MAJOR>(h, a, x_tiles, PANEL, true);
    mm_commit<ISA>();
    mm_wait<ISA, 0>();
}

/* Phase 5: adds this head's sum to those of the heads before it; after the last head the gradient goes out, with the
 * projection of the l2 norm, d = H - norm^2 rowsum(H o x) x. */
DT_DEVICE void finish_rows(float (&h)[64], const gradient_item &it, float *partial, uint32_t tile, uint32_t staging,
                           const float *norms, int64_t norms_stride, const gdn_rows &out, int width)
{
    int thread = (int)threadIdx.x & 127, lane = thread & 31;
    float4 *mine = (float4 *)partial + thread;
    if (!it.first) {
        DT_UNROLL
        for (int c = 0; c < 16; c++) {
            float4 x = mine[c * 128];
            h[4 * c] += x.x;
            h[4 * c + 1] += x.y;
            h[4 * c + 2] += x.z;
            h[4 * c + 3] += x.w;
        }
    }
    if (!it.last) {
        DT_UNROLL
        for (int c = 0; c < 16; c++)
            mine[c * 128] = make_float4(h[4 * c], h[4 * c + 1], h[4 * c + 2], h[4 * c + 3]);
        return;
    }
    DT_UNROLL
    for (int y = 0; y < 2; y++) {
        int row = slab_row() + 8 * y;
        float sum = 0.0f, norm = row < it.rows ? norms[(it.row0 + row) * norms_stride] : 0.0f;
        DT_UNROLL
        for (int j = 0; j < 16; j++) {
            uint32_t pair = load_shared4(pair_address(tile, j, y));
            sum += h[4 * j + 2 * y] * bf16_low(pair) + h[4 * j + 2 * y + 1] * bf16_high(pair);
        }
        sum = row_total(sum) * norm * norm;
        DT_UNROLL
        for (int j = 0; j < 16; j++) {
            uint32_t pair = load_shared4(pair_address(tile, j, y));
            store_shared4(pair_address(staging, j, y), pack_bf16(h[4 * j + 2 * y] - sum * bf16_low(pair),
                                                                 h[4 * j + 2 * y + 1] - sum * bf16_high(pair)));
        }
    }
    warp_sync();
    DT_UNROLL
    for (int i = 0; i < 8; i++) {
        int row = 16 * slab_warp() + 2 * i + (lane >> 4), unit = lane & 15;
        uint4 x = load_shared16(tile_unit(staging + (uint32_t)(unit >> 3) * PANEL, row, unit & 7));
        if (row < it.rows && unit * 8 < width)
            *(uint4 *)(out.data + (it.row0 + row) * out.row + (int64_t)it.key_head * out.head + unit * 8) = x;
    }
}
/* Phase 5, by one warp: dbeta, and dG summed backwards over the chunk. */
DT_DEVICE void finish_gates(const gdn_params &p, const gradient_item &it, bool has_states, const gdn_vectors *v,
                            const gradient_sums *sums)
{
    int lane = (int)threadIdx.x & 31;
    float dG[2], beta_x = 0.0f;
    DT_UNROLL
    for (int i = 0; i < 2; i++) {
        int j = 2 * lane + i;
        float x = (sums->x_cols[0][j] + sums->x_cols[1][j]) + (sums->x_cols[2][j] + sums->x_cols[3][j]);
        float e = (sums->e_cols[0][j] + sums->e_cols[1][j]) + (sums->e_cols[2][j] + sums->e_cols[3][j]);
        if (j < it.rows)
            p.dbeta.data[(it.row0 + j) * p.dbeta.row + it.head] = x + e + sums->n_rows[j];
        dG[i] = sums->aq[j] + sums->ak[j] + sums->e_rows[j] - v->beta[j] * (e + x);
        beta_x += v->beta[j] * x;
    }
    DT_UNROLL
    for (int n = 16; n; n /= 2)
        beta_x += shuffle_xor(beta_x, n);
    float states = has_states ? (sums->states[0] + sums->states[1]) + (sums->states[2] + sums->states[3]) : 0.0f;
    float last = beta_x + v->gamma_last * states;
    DT_UNROLL
    for (int i = 0; i < 2; i++)
        dG[i] += 2 * lane + i == it.rows - 1 ? last : 0.0f;
    float sum = dG[0] + dG[1];
    DT_UNROLL
    for (int n = 1; n < 32; n *= 2) {
        float x = shuffle_down(sum, n);
        sum += lane + n < 32 ? x : 0.0f;
    }
    float dg[2] = {sum, sum - dG[0]};
    DT_UNROLL
    for (int i = 0; i < 2; i++)
        if (2 * lane + i < it.rows)
            p.dg.data[(it.row0 + 2 * lane + i) * p.dg.row + it.head] = dg[i];
}

/* Between phases: what was stored is seen by all, also by wgmma and the copy engine. Not __syncthreads, which must be
 * met at one place of the program: the roles meet here. */
DT_DEVICE void phase_sync()
{
    fence_async_proxy();
    group_sync(3, GRADIENT_THREADS);
}

/* The items of a block and their loads; every role walks through it in the same way. */
struct gradient_pipe {
    gradient_item it, next;
    gdn_tokens tokens;
    unsigned index;
    uint32_t base, q_tile, k_tile, x_tiles;
    unsigned char *shared;
    gdn_vectors *v;
    gradient_sums *sums;
    const chain_maps *maps;
    int member, n;
    bool has_state, has_gradient;
};
/* The first warp of Q fetches the per-token values, its first thread starts the copies. */
DT_DEVICE bool loads_tokens()
{
    return threadIdx.x / 32 == 4;
}
DT_DEVICE bool starts_copies()
{
    return threadIdx.x == 128;
}
DT_DEVICE uint32_t tiles_barrier(const gradient_pipe &g)
{
    return g.base + GRAD_BARRIER;
}

/* A tile of one head by the copy engine. */
DT_DEVICE void copy_rows(uint32_t tile, const tensor_map &map, int head, int row, uint32_t barrier)
{
    copy_box(tile, map, 0, head, row, barrier);
    copy_box(tile + PANEL, map, 64, head, row, barrier);
}
/* The loads of `next` come in two parts: what is free after phase 3, and the rest. On Hopper one thread starts them,
 * and all of them complete on one barrier; elsewhere all threads take part. */
template <int ISA> DT_DEVICE void start_values(gradient_pipe &g, const gdn_params &p)
{
    const gradient_item &it = g.next;
    if constexpr (ISA == ISA_WGMMA) {
        if (starts_copies()) {
            bool state = !state_is_zero(p, it.flags), gradient = !gradient_is_zero(p, it.flags);
            uint32_t barrier = tiles_barrier(g);
            int row = (int)it.row0;
            barrier_expect(barrier, 3 * ROWS_BYTES + AT_BYTES + (it.first ? 2 * ROWS_BYTES : 0) +
                                        (state ? STATE_BYTES : 0) + (gradient ? STATE_BYTES : 0));
            copy_rows(g.base + GRAD_V, g.maps->v, it.head, row, barrier);
            copy_rows(g.base + GRAD_DO, g.maps->d_o, it.head, row, barrier);
            copy_rows(g.base + GRAD_DW, g.maps->dv, it.head, row, barrier);
            if (state)
                copy_bulk(g.base + GRAD_S, p.h + it.image * STATE_BYTES, STATE_BYTES, barrier);
            if (gradient)
                copy_bulk(g.base + GRAD_DS, p.dh + it.image * STATE_BYTES, STATE_BYTES, barrier);
        }
    } else
        load_values(g.base, p, it);
    if (loads_tokens())
        load_tokens(g.tokens, p, it.row0, it.rows, it.head, it.key_head);
}
template <int ISA> DT_DEVICE void start_rest(gradient_pipe &g, const gdn_params &p)
{
    const gradient_item &it = g.next;
    if constexpr (ISA == ISA_WGMMA) {
        if (starts_copies()) {
            copy_bulk(g.base + GRAD_AT, p.at + it.image * AT_BYTES, AT_BYTES, tiles_barrier(g));
            if (it.first) {
                copy_rows(g.x_tiles, g.maps->q, it.key_head, (int)it.row0, tiles_barrier(g));
                copy_rows(g.x_tiles + ROWS_BYTES, g.maps->k, it.key_head, (int)it.row0, tiles_barrier(g));
            }
        }
    } else {
        load_image(g.base + GRAD_AT, p.at + it.image * AT_BYTES, AT_BYTES, GRADIENT_THREADS);
        if (it.first)
            load_pair(g.x_tiles, p, it);
        copy_commit();
    }
}
template <int ISA>
DT_DEVICE void pipe_start(gradient_pipe &g, const gdn_params &p, const chain_maps &maps, unsigned char *shared)
{
    g.index = blockIdx.x;
    g.member = 0;
    g.n = 0;
    g.shared = shared;
    g.maps = &maps;
    g.base = shared_address(shared);
    g.x_tiles = g.base + GRAD_QK;
    g.q_tile = g.x_tiles + 2 * ROWS_BYTES;
    g.v = (gdn_vectors *)(shared + GRAD_VECTORS) + 1;
    g.sums = (gradient_sums *)(shared + GRAD_SUMS);
    if (ISA == ISA_WGMMA) {
        if (threadIdx.x == 0) {
            barrier_init(tiles_barrier(g), 1);
            barrier_init_fence();
        }
        block_sync();
    }
    g.next = gradient_at(p, g.index, 0);
    if (g.next.valid) {
        start_values<ISA>(g, p);
        start_rest<ISA>(g, p);
    }
}
/* Makes `next` the current item: its tiles and vectors are there for all threads. */
template <int ISA> DT_DEVICE void pipe_arrive(gradient_pipe &g, const gdn_params &p)
{
    g.it = g.next;
    gdn_vectors *first = (gdn_vectors *)(g.shared + GRAD_VECTORS);
    g.v = g.v == first ? first + 1 : first;
    if (g.it.first) { /* its Q and K were loaded where the previous item's dX was */
        uint32_t x = g.x_tiles;
        g.x_tiles = g.q_tile;
        g.q_tile = x;
        g.k_tile = x + ROWS_BYTES;
    }
    g.has_state = uniform(!state_is_zero(p, g.it.flags));
    g.has_gradient = uniform(!gradient_is_zero(p, g.it.flags));
    g.index += g.it.last ? gridDim.x : 0;
    g.member = g.it.last ? 0 : g.member + 1;
    g.next = gradient_at(p, g.index, g.member);
    if (loads_tokens())
        write_vectors(g.v, g.tokens, p.scale);
    if (ISA == ISA_WGMMA) {
        barrier_wait(tiles_barrier(g), g.n & 1);
        if (g.it.rows < CHUNK) /* the copies ran on into the next sample */
            for (int i = 0; i < (g.it.first ? 5 : 3); i++)
                zero_rows(i < 3 ? g.base + GRAD_V + (uint32_t)i * ROWS_BYTES
                                : g.q_tile + (uint32_t)(i - 3) * ROWS_BYTES,
                          g.it.rows, GRADIENT_THREADS);
    } else
        copy_wait<0>();
    g.n++;
    phase_sync();
}
/* After phase 3, V, dO, dW, S0 and dS1 are free; after phase 4, At and dX. */
/* On Hopper Q alone starts them. */
template <int ISA, bool LOADS> DT_DEVICE void pipe_values(gradient_pipe &g, const gdn_params &p)
{
    if ((LOADS || ISA == ISA_MMA) && g.next.valid)
        start_values<ISA>(g, p);
}
template <int ISA, bool LOADS> DT_DEVICE void pipe_rest(gradient_pipe &g, const gdn_params &p)
{
    if ((LOADS || ISA == ISA_MMA) && g.next.valid)
        start_rest<ISA>(g, p);
}

template <int ISA> DT_DEVICE void gradient_role_a(gradient_pipe &g, const gdn_params &p)
{
    float kk[32];
    while (uniform(g.next.valid)) {
        pipe_arrive<ISA>(g, p);
        float r[32];
        uint32_t a[4][4], d[4][4];
        if (uniform(g.it.first)) {
            mm_begin<ISA>();
            mm_ss<ISA, 64, 8, K_MAJOR, K_MAJOR>(r, g.q_tile, PANEL, g.k_tile, PANEL, false);
            mm_ss<ISA, 64, 8, K_MAJOR, K_MAJOR>(kk, g.k_tile, PANEL, g.k_tile, PANEL, false);
            mm_commit<ISA>();
            mm_wait<ISA, 0>();
            store_lower<ISA, 0>(g.base + GRAD_PQ, r, a);
            fence_async_proxy();
            group_sync(1, 128);
        }
        mm_begin<ISA>();
        mm_ss<ISA, 64, 4, K_MAJOR, MN_MAJOR>(r, g.base + GRAD_PQ, PANEL, g.base + GRAD_AT, PANEL, false);
        mm_commit<ISA>();
        mm_wait<ISA, 0>();
        phase_sync(); /* 2 */
        float dp[32];
        mm_begin<ISA>();
        mm_ss<ISA, 64, 8, K_MAJOR, K_MAJOR>(dp, g.base + GRAD_DO, PANEL, g.base + GRAD_V, PANEL, false);
        mm_commit<ISA>();
        mm_wait<ISA, 0>();
        step_d(dp, r, g.v, g.sums);
        store_lower<ISA, 0>(g.base + GRAD_D, dp, d);
        phase_sync(); /* 3 */
        mm_begin<ISA>();
        mm_rs<ISA, 64, 4, K_MAJOR>(r, d, g.base + GRAD_AT, PANEL, false);
        mm_commit<ISA>();
        mm_wait<ISA, 0>();
        store_lower<ISA, 0>(g.base + GRAD_DQ, r, a);
        if (g.has_state && g.has_gradient)
            step_states(g.base, g.sums);
        phase_sync(); /* 4 */
        pipe_values<ISA, false>(g, p);
        step_n<ISA>(g.base, kk, g.v, g.sums);
        group_sync(1, 128);
        if (threadIdx.x < 32)
            finish_gates(p, g.it, g.has_state && g.has_gradient, g.v, g.sums);
        phase_sync();
        pipe_rest<ISA, false>(g, p);
    }
}

template <int ISA> DT_DEVICE void gradient_role_q(gradient_pipe &g, const gdn_params &p)
{
    float *partial = p.partial + (int64_t)blockIdx.x * (PARTIAL_BYTES / 4);
    while (uniform(g.next.valid)) {
        pipe_arrive<ISA>(g, p);
        if (g.has_state)
            step_wv<ISA>(g.base, g.k_tile, g.v);
        phase_sync(); /* 2 */
        float h[64];
        if (g.has_state) {
            mm_begin<ISA>();
            mm_ss<ISA, 128, 8, K_MAJOR, MN_MAJOR>(h, g.base + GRAD_DO, PANEL, g.base + GRAD_S, STATE_PANEL, false);
            mm_commit<ISA>();
            mm_wait<ISA, 0>();
            scale_rows(h, g.v->s_gamma_rq, 1.0f);
        } else
            mm_clear(h);
        dot_rows(g.sums->aq, h, g.q_tile);
        phase_sync(); /* 3 */
        step_t<ISA>(g.base, g.k_tile, g.x_tiles, g.has_gradient, g.v, g.sums);
        phase_sync(); /* 4 */
        pipe_values<ISA, true>(g, p);
        mm_begin<ISA>();
        mm_ss<ISA, 128, 4, K_MAJOR, MN_MAJOR>(h, g.base + GRAD_DQ, PANEL, g.k_tile, PANEL, true);
        mm_commit<ISA>();
        mm_wait<ISA, 0>();
        /* dq leaves through the low part of dX, which nobody reads any more */
        finish_rows(h, g.it, partial, g.q_tile, g.x_tiles + ROWS_BYTES, p.rq + g.it.key_head, p.heads, p.dq, p.K);
        phase_sync();
        pipe_rest<ISA, true>(g, p);
    }
}

/* Hk += Y K + Y^T K, and out, in phase 1 of the item after. */
template <int ISA>
DT_DEVICE void finish_k(float (&h)[64], const gradient_pipe &g, const gdn_params &p, const gradient_item &it,
                        uint32_t k_tile)
{
    float *partial = p.partial + (int64_t)blockIdx.x * (PARTIAL_BYTES / 4) + CHUNK * WIDTH;
    mm_begin<ISA>();
    mm_ss<ISA, 128, 4, K_MAJOR, MN_MAJOR>(h, g.base + GRAD_D, PANEL, k_tile, PANEL, true);
    mm_ss<ISA, 128, 4, MN_MAJOR, MN_MAJOR>(h, g.base + GRAD_D, PANEL, k_tile, PANEL, true);
    mm_commit<ISA>();
    mm_wait<ISA, 0>();
    finish_rows(h, it, partial, k_tile, g.base + GRAD_DQ, p.rk + it.key_head, p.heads, p.dk, p.K);
}
template <int ISA> DT_DEVICE void gradient_role_k(gradient_pipe &g, const gdn_params &p)
{
    float h[64];
    gradient_item last;
    uint32_t last_k = 0;
    bool any = false;
    while (uniform(g.next.valid)) {
        pipe_arrive<ISA>(g, p);
        if (any)
            finish_k<ISA>(h, g, p, last, last_k);
        phase_sync(); /* 2 */
        if (g.has_gradient)
            step_dx<ISA>(g.base, g.x_tiles, g.v);
        phase_sync(); /* 3 */
        if (g.has_state) {
            mm_begin<ISA>();
            mm_ss<ISA, 128, 8, K_MAJOR, MN_MAJOR>(h, g.base + GRAD_DW, PANEL, g.base + GRAD_S, STATE_PANEL, false);
            mm_commit<ISA>();
            mm_wait<ISA, 0>();
            scale_rows(h, g.v->gamma_rk, -1.0f);
        } else
            mm_clear(h);
        dot_rows(g.sums->ak, h, g.k_tile);
        phase_sync(); /* 4 */
        pipe_values<ISA, false>(g, p);
        step_hk<ISA>(h, g.base, g.q_tile, g.x_tiles, g.has_gradient, g.v);
        last = g.it;
        last_k = g.k_tile;
        any = true;
        phase_sync();
        pipe_rest<ISA, false>(g, p);
    }
    if (any)
        finish_k<ISA>(h, g, p, last, last_k);
}

template <int ISA> DT_DEVICE void gdn_gradient_block(const gdn_params &p, const chain_maps &maps)
{
    DT_SHARED(shared);
    gradient_pipe g;
    pipe_start<ISA>(g, p, maps, shared);
    const int role = uniform((int)threadIdx.x / 128);
    if (role == 0)
        gradient_role_a<ISA>(g, p);
    else if (role == 1)
        gradient_role_q<ISA>(g, p);
    else
        gradient_role_k<ISA>(g, p);
    int64_t T = p.table.counts[3];
    clear_rows(p.dq, T, p.T_cap, p.heads, p.K);
    clear_rows(p.dk, T, p.T_cap, p.heads, p.K);
    clear_scalars(p.dg, T, p.T_cap, p.value_heads);
    clear_scalars(p.dbeta, T, p.T_cap, p.value_heads);
}
template <int ISA>
DT_KERNEL(GRADIENT_THREADS, 1)
gdn_gradient_kernel(DT_GRID_CONSTANT gdn_params p, DT_GRID_CONSTANT chain_maps maps)
{
    if constexpr (DT_RUNS_HERE(ISA))
        gdn_gradient_block<ISA>(p, maps);
}
#endif
