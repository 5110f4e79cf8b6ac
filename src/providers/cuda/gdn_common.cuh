/* What the gated delta rule kernels share: parameters, the chunk table, tile loads, per-chunk vectors.
 *
 * Notation and formulas: chunk form of Yang et al., arXiv:2412.06464, in the "X form": the inverse
 * At = diag(rk) (I + L)^-1 with L = slow(beta_i rk_i rk_j k_i.k_j) carries no gate, q and k stay raw and their norms
 * (rq, rk) enter as fp32 row and column factors. Per chunk, with S0 the state at its start:
 *     R  = low(Q K^T) At            P' = s rq_i E_ij R_ij beta_j      X' = diag(eta beta) At^T K
 *     Wv = V - diag(gamma rk) K S0
 *     O  = s diag(gamma rq) Q S0 + P' Wv        S1 = gamma_last S0 + X'^T Wv
 * G is the running sum of log2(e) g inside the chunk, E_ij = 2^(G_i-G_j) for i >= j, gamma = 2^G, eta = 2^(G_last-G).
 */
#ifndef DT_CUDA_GDN_COMMON_CUH
#define DT_CUDA_GDN_COMMON_CUH
#include "providers/cuda/mm.cuh"

enum { CHUNK = 64, WIDTH = 128, PANEL = CHUNK * 128, STATE_PANEL = WIDTH * 128 };
enum { AT_BYTES = CHUNK * CHUNK * 2, ROWS_BYTES = 2 * PANEL, STATE_BYTES = 2 * STATE_PANEL };
#define LOG2_E 1.4426950408889634f

/* A [T, heads, width] bf16 tensor; strides in elements. */
struct gdn_rows {
    uint16_t *data;
    int64_t row, head;
};
/* A [T, Hv] fp32 tensor. */
struct gdn_scalars {
    float *data;
    int64_t row;
};

/* Written by the table kernel, read by all others. */
struct gdn_table {
    int32_t *counts;  /* [0] chunks, [1] samples that are not empty, [2] samples, [3] T */
    int4 *chunk;      /* {first row, rows, sample, CHUNK_FIRST | CHUNK_LAST} in row order, then entries without rows */
    int4 *chain;      /* {first row, length, sample, first chunk}: longest samples first, empty ones last */
    int32_t capacity; /* entries of chunk */
};
enum { CHUNK_FIRST = 1, CHUNK_LAST = 2 };

struct gdn_params {
    gdn_rows q, k, v, o, d_o, dq, dk, dv;
    gdn_scalars g, beta, dg, dbeta;
    const float *initial_state, *dfinal_state;
    float *final_state, *dinitial_state;
    const int32_t *cu_seqlens;                           /* device, [n_seq_cap+1] */
    int32_t n_seq, n_seq_cap, heads, value_heads, group; /* group = value_heads / heads */
    int32_t K, V;
    int64_t T_cap;
    float scale;
    gdn_table table;
    float *rq, *rk;        /* [T_cap, heads] 1 / sqrt(sum x^2 + 1e-6) */
    unsigned char *at;     /* [chunk][value head] 8 KiB images of At */
    unsigned char *h, *dh; /* [chunk][value head] 32 KiB images, stored [V][K]: S0, dS1 */
};

DT_DEVICE int chunk_count(int length)
{
    return (length + CHUNK - 1) / CHUNK;
}

/* The state read at the start of this chunk is zero; the gradient that arrives at its end is. */
DT_DEVICE bool state_is_zero(const gdn_params &p, int flags)
{
    return (flags & CHUNK_FIRST) && !p.initial_state;
}
DT_DEVICE bool gradient_is_zero(const gdn_params &p, int flags)
{
    return (flags & CHUNK_LAST) && !p.dfinal_state;
}

/* The tensors as Hopper's copy engine sees them; which tensor is v, and whether the last two are used, is each
 * kernel's. */
struct chain_maps {
    tensor_map q, k, v, d_o, dv;
};

/* Rows from `rows` on of a tile of 64 rows, two panels. By `threads` threads. */
DT_DEVICE void zero_rows(uint32_t tile, int rows, int threads)
{
    int first = rows * 8, count = (CHUNK - rows) * 8; /* 16-byte units of a panel */
    DT_ROLLED
    for (int i = (int)threadIdx.x % threads; i < 2 * count; i += threads)
        store_shared16(tile + (uint32_t)((i >= count ? PANEL : 0) + (first + (i >= count ? i - count : i)) * 16),
                       make_uint4(0, 0, 0, 0));
}

/* Starts the loads of `rows` rows of 128 columns into a 64-row tile; rows past `rows` and columns past `width` become
 * 0. */
DT_DEVICE void load_rows(uint32_t tile, const gdn_rows &t, int64_t row0, int rows, int head, int width, int threads)
{
    const uint16_t *base = t.data + row0 * t.row + (int64_t)head * t.head;
    for (int i = (int)threadIdx.x % threads; i < CHUNK * WIDTH / 8; i += threads) {
        int row = i >> 4, unit = i & 15;
        bool inside = row < rows && unit * 8 < width;
        copy_async16(tile_unit(tile + (uint32_t)(unit >> 3) * PANEL, row, unit & 7),
                     inside ? base + row * t.row + unit * 8 : t.data, inside ? 16 : 0);
    }
}
/* Starts the copy of a tile image. */
DT_DEVICE void load_image(uint32_t tile, const unsigned char *image, int bytes, int threads)
{
    for (int i = (int)threadIdx.x % threads * 16; i < bytes; i += threads * 16)
        copy_async16(tile + (uint32_t)i, image + i, 16);
}

/* Per-token factors of a chunk, in shared memory. */
struct alignas(16) gdn_vectors {
    float G[CHUNK], beta[CHUNK];
    float gamma_rk[CHUNK];   /* gamma rk */
    float s_gamma_rq[CHUNK]; /* s gamma rq */
    float s_rq[CHUNK];       /* s rq */
    float eta[CHUNK], eta_beta[CHUNK], rk[CHUNK];
    float2 G_beta[CHUNK]; /* both again, side by side */
    float gamma_last, pad[3];
};

/* The raw values of rows 2 lane and 2 lane + 1, so that they can be fetched long before they are used. */
struct gdn_tokens {
    float g[2], beta[2], rq[2], rk[2];
};
DT_DEVICE void load_tokens(gdn_tokens &t, const gdn_params &p, int64_t row0, int rows, int head, int key_head)
{
    int first = 2 * ((int)threadIdx.x & 31);
    const float *g = p.g.data + (row0 + first) * p.g.row + head,
                *beta = p.beta.data + (row0 + first) * p.beta.row + head;
    const float *rq = p.rq + (row0 + first) * p.heads + key_head, *rk = p.rk + (row0 + first) * p.heads + key_head;
    DT_UNROLL
    for (int i = 0; i < 2; i++) {
        bool inside = first + i < rows;
        t.g[i] = inside ? g[i * p.g.row] : 0.0f;
        t.beta[i] = inside ? beta[i * p.beta.row] : 0.0f;
        t.rq[i] = inside ? rq[i * p.heads] : 0.0f;
        t.rk[i] = inside ? rk[i * p.heads] : 0.0f;
    }
}
/* By one warp. Rows past the end have g = 0, so that G_last is that of the last valid row. */
DT_DEVICE void write_vectors(gdn_vectors *v, const gdn_tokens &t, float scale)
{
    int lane = (int)threadIdx.x & 31;
    float first = t.g[0] * LOG2_E, second = first + t.g[1] * LOG2_E, sum = second;
    DT_UNROLL
    for (int n = 1; n < 32; n *= 2) {
        float x = shuffle_up(sum, n);
        sum += lane >= n ? x : 0.0f;
    }
    float before = shuffle_up(sum, 1), last = shuffle_from(sum, 31);
    before = lane ? before : 0.0f;
    float G[2] = {before + first, before + second};
    float gamma[2] = {exp2_fast(G[0]), exp2_fast(G[1])}, s_rq[2] = {scale * t.rq[0], scale * t.rq[1]};
    ((float2 *)v->G)[lane] = make_float2(G[0], G[1]);
    ((float2 *)v->beta)[lane] = make_float2(t.beta[0], t.beta[1]);
    ((float2 *)v->gamma_rk)[lane] = make_float2(gamma[0] * t.rk[0], gamma[1] * t.rk[1]);
    ((float2 *)v->s_gamma_rq)[lane] = make_float2(gamma[0] * s_rq[0], gamma[1] * s_rq[1]);
    ((float2 *)v->s_rq)[lane] = make_float2(s_rq[0], s_rq[1]);
    float eta[2] = {exp2_fast(last - G[0]), exp2_fast(last - G[1])};
    ((float2 *)v->eta)[lane] = make_float2(eta[0], eta[1]);
    ((float2 *)v->eta_beta)[lane] = make_float2(eta[0] * t.beta[0], eta[1] * t.beta[1]);
    ((float2 *)v->rk)[lane] = make_float2(t.rk[0], t.rk[1]);
    ((float4 *)v->G_beta)[lane] = make_float4(G[0], t.beta[0], G[1], t.beta[1]);
    if (lane == 0)
        v->gamma_last = exp2_fast(last);
}

/* Rows T .. T_cap-1 of a [T_cap, heads, width] output are 0. */
DT_DEVICE void clear_rows(const gdn_rows &t, int64_t from, int64_t to, int heads, int width)
{
    int64_t units = (int64_t)heads * (width / 8), step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (to - from) * units; i += step) {
        int64_t row = from + i / units, unit = i % units;
        *(uint4 *)(t.data + row * t.row + unit / (width / 8) * t.head + unit % (width / 8) * 8) =
            make_uint4(0, 0, 0, 0);
    }
}
DT_DEVICE void clear_scalars(const gdn_scalars &t, int64_t from, int64_t to, int heads)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (to - from) * heads; i += step)
        t.data[(from + i / heads) * t.row + i % heads] = 0.0f;
}
#endif
