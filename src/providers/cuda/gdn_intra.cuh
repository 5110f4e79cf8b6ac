/* Per chunk and key head: row norms, K K^T once, and for each value head At = diag(rk) (I + L)^-1 as bf16. */
#ifndef DT_CUDA_GDN_INTRA_CUH
#define DT_CUDA_GDN_INTRA_CUH
#include "providers/cuda/gdn_common.cuh"

enum {
    INTRA_THREADS = 128,
    INTRA_STRIDE = 72 /* floats a row: fewest bank conflicts in the accesses below, taken together */
};
enum {
    INTRA_SQUARE = CHUNK * INTRA_STRIDE + 16 /* the two heads in different banks */,
    INTRA_SHARED = 2 * INTRA_SQUARE * 4 + 2 * CHUNK * 4 + 16
};

/* 1/sqrt(sum x^2 + 1e-6) of each row; 0 past `rows`. Each warp its 16 rows: the diagonal of X X^T, of which the
 * fragments of X are both operands. */
DT_DEVICE void row_norms(float *shared_norms, float *norms, int64_t stride, uint32_t tile, int rows)
{
    int lane = (int)threadIdx.x & 31, row0 = 16 * ((int)threadIdx.x >> 5), g = lane >> 2;
    float low[4] = {0.0f, 0.0f, 0.0f, 0.0f}, high[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    DT_UNROLL
    for (int s = 0; s < 8; s++) {
        uint32_t a[4];
        load_a<K_MAJOR>(a, tile, PANEL, s, row0);
        mma_bf16(low, a, a[0], a[2]);
        mma_bf16(high, a, a[1], a[3]);
    }
    if ((g >> 1) != (lane & 3)) /* columns 2 (lane % 4) + {0, 1} meet rows lane/4 (+8) in these lanes only */
        return;
    DT_UNROLL
    for (int y = 0; y < 2; y++) {
        float even = y ? high[2] : low[0], odd = y ? high[3] : low[1];
        int row = row0 + g + 8 * y;
        float norm = row < rows ? rsqrtf((g & 1 ? odd : even) + 1e-6f) : 0.0f;
        shared_norms[row] = norm;
        if (row < rows)
            norms[row * stride] = norm;
    }
}

/* The inverses of two value heads are made side by side: `l` of the second lies INTRA_SQUARE floats behind that of the
 * first.
 *
 * The 16 x 16 diagonal block at `b` (unit lower triangular, strict part in memory) becomes its inverse, by one warp:
 * lanes 0..15 for the first head, the others for the second; each computes a column by substitution. */
DT_DEVICE void invert_diagonal(float *b)
{
    int lane = (int)threadIdx.x & 31, column = lane & 15;
    float x[16];
    b += lane < 16 ? 0 : INTRA_SQUARE;
    DT_UNROLL
    for (int i = 0; i < 16; i++) {
        float sum = 0.0f;
        DT_UNROLL
        for (int m = 0; m < i; m += 4) {
            float4 l = *(const float4 *)(b + i * INTRA_STRIDE + m);
            sum += l.x * x[m];
            if (m + 1 < i)
                sum += l.y * x[m + 1];
            if (m + 2 < i)
                sum += l.z * x[m + 2];
            if (m + 3 < i)
                sum += l.w * x[m + 3];
        }
        x[i] = i == column ? 1.0f : -sum; /* sum is 0 above the diagonal */
    }
    warp_sync();
    DT_UNROLL
    for (int i = 0; i < 16; i++)
        b[i * INTRA_STRIDE + column] = round_tf32(x[i]);
}

/* With D1 (upper left) and D2 (lower right) inverted, the lower left block L21 of a 2 SIZE square becomes -D2 L21 D1.
 * This warp makes its rows row0 .. row0 + 15. tf32 products: the k index of the second product is permuted (2t, 2t+1
 * for t, t+4), so that the first result is its A operand without shuffles. All that lies in shared memory is rounded
 * to tf32 already. */
template <int SIZE> DT_DEVICE void merge_blocks(float (&out)[SIZE / 2], const float *square, int row0)
{
    int lane = (int)threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const float *d1 = square, *l21 = square + SIZE * INTRA_STRIDE, *d2 = l21 + SIZE;
    float w[SIZE / 2];
    mm_clear(w);
    DT_UNROLL
    for (int k = 0; k < SIZE; k += 8) {
        const float *a = d2 + (row0 + g) * INTRA_STRIDE + k + t;
        uint32_t fa[4] = {float_bits(a[0]), float_bits(a[8 * INTRA_STRIDE]), float_bits(a[4]),
                          float_bits(a[8 * INTRA_STRIDE + 4])};
        DT_UNROLL
        for (int j = 0; j < SIZE / 8; j++) {
            const float *b = l21 + (k + t) * INTRA_STRIDE + 8 * j + g;
            mma_tf32(w + 4 * j, fa, float_bits(b[0]), float_bits(b[4 * INTRA_STRIDE]));
        }
    }
    mm_clear(out);
    DT_UNROLL
    for (int k = 0; k < SIZE / 8; k++) {
        uint32_t fa[4] = {to_tf32(-w[4 * k]), to_tf32(-w[4 * k + 2]), to_tf32(-w[4 * k + 1]), to_tf32(-w[4 * k + 3])};
        DT_UNROLL
        for (int j = 0; j <= k; j++) { /* D1 is 0 above its diagonal */
            const float *b = d1 + (8 * k + 2 * t) * INTRA_STRIDE + 8 * j + g;
            mma_tf32(out + 4 * j, fa, float_bits(b[0]), float_bits(b[INTRA_STRIDE]));
        }
    }
}
/* A 16-row slab of a block from row0; ROUND: others multiply with it. */
template <int N, bool ROUND> DT_DEVICE void store_block(float *block, const float (&x)[N], int row0)
{
    int lane = (int)threadIdx.x & 31;
    float *to = block + (row0 + (lane >> 2)) * INTRA_STRIDE + 2 * (lane & 3);
    DT_UNROLL
    for (int n = 0; n < N; n += 2)
        *(float2 *)(to + 8 * (n >> 2) + (n & 2) * 4 * INTRA_STRIDE) =
            ROUND ? make_float2(round_tf32(x[n]), round_tf32(x[n + 1])) : make_float2(x[n], x[n + 1]);
}

/* L of two heads in shared memory (strict lower part, zeros elsewhere) becomes (I + L)^-1. */
DT_DEVICE void invert_chunk(float *l)
{
    const int warp = (int)threadIdx.x >> 5;
    invert_diagonal(l + 16 * warp * (INTRA_STRIDE + 1));
    block_sync();
    float *mine = l + (warp & 1) * INTRA_SQUARE;
    block_sync();
    {
        float *square = mine + (warp >> 1) * 32 * (INTRA_STRIDE + 1), x[8];
        merge_blocks<16>(x, square, 0);
        warp_sync(); /* nobody else uses this block yet */
        store_block<8, true>(square + 16 * INTRA_STRIDE, x, 0);
    }
    block_sync();
    float x[16];
    merge_blocks<32>(x, mine, 16 * (warp >> 1));
    block_sync();
    store_block<16, false>(mine + 32 * INTRA_STRIDE, x, 16 * (warp >> 1));
    block_sync();
}

/* L = slow(beta_i rk_i rk_j k_i.k_j) of two heads, rounded to tf32, zeros on and above the diagonal. b[y][head]. */
DT_DEVICE void store_l(float *l, const float (&kk)[32], const float *rk, const float (&b)[2][2], int row)
{
    int t = 2 * ((int)threadIdx.x & 3);
    DT_UNROLL
    for (int j = 0; j < 8; j++) {
        int x = 8 * j + t;
        float2 r = *(const float2 *)(rk + x);
        DT_UNROLL
        for (int y = 0; y < 2; y++) {
            int i = row + 8 * y;
            float first = i > x ? r.x * kk[4 * j + 2 * y] : 0.0f,
                  second = i > x + 1 ? r.y * kk[4 * j + 2 * y + 1] : 0.0f;
            DT_UNROLL
            for (int head = 0; head < 2; head++)
                *(float2 *)(l + head * INTRA_SQUARE + i * INTRA_STRIDE + x) =
                    make_float2(round_tf32(b[y][head] * first), round_tf32(b[y][head] * second));
        }
    }
}
/* At = diag(rk) (I + L)^-1 to its image: four columns a thread. */
DT_DEVICE void write_at(unsigned char *image, const float *l, const float *rk)
{
    const int quad = (int)threadIdx.x & 15;
    DT_UNROLL
    for (int c = 0; c < 8; c++) {
        int y = ((int)threadIdx.x >> 4) + 8 * c;
        float4 u = *(const float4 *)(l + y * INTRA_STRIDE + 4 * quad);
        float f = rk[y];
        *(uint2 *)(image + y * 128 + ((quad >> 1) ^ (y & 7)) * 16 + (quad & 1) * 8) =
            make_uint2(pack_bf16(f * u.x, f * u.y), pack_bf16(f * u.z, f * u.w));
    }
}
/* K and Q of a chunk: by the copy engine on Hopper, else by all threads. Ends with a barrier. */
template <int ISA>
DT_DEVICE void load_intra(const gdn_params &p, const chain_maps &maps, const int4 &rows, int key_head, uint32_t k_tile,
                          uint32_t q_tile, uint32_t barrier)
{
    if constexpr (ISA == ISA_WGMMA) {
        if (threadIdx.x == 0) {
            barrier_init(barrier, 1);
            barrier_init_fence();
            barrier_expect(barrier, 2 * ROWS_BYTES);
            for (int i = 0; i < 2; i++) {
                copy_box(k_tile + i * PANEL, maps.k, 64 * i, key_head, rows.x, barrier);
                copy_box(q_tile + i * PANEL, maps.q, 64 * i, key_head, rows.x, barrier);
            }
        }
        block_sync();
        barrier_wait(barrier, 0);
        if (rows.y < CHUNK) {
            zero_rows(k_tile, rows.y, INTRA_THREADS);
            zero_rows(q_tile, rows.y, INTRA_THREADS);
        }
    } else {
        load_rows(k_tile, p.k, rows.x, rows.y, key_head, p.K, INTRA_THREADS);
        load_rows(q_tile, p.q, rows.x, rows.y, key_head, p.K, INTRA_THREADS);
        copy_commit();
        copy_wait<0>();
    }
    fence_async_proxy();
    block_sync();
}

/* beta of this thread's two rows, of two heads; 0 for rows and heads that are not there. */
DT_DEVICE void load_betas(float (&b)[2][2], const gdn_params &p, const int4 &rows, int head, int heads, int row)
{
    const float *beta = p.beta.data + (int64_t)rows.x * p.beta.row + head;
    DT_UNROLL
    for (int n = 0; n < 4; n++) {
        int y = row + 8 * (n >> 1), other = n & 1;
        b[n >> 1][other] = y < rows.y && other < heads ? beta[y * p.beta.row + other] : 0.0f;
    }
}
template <int ISA> DT_DEVICE void gdn_intra_block(const gdn_params &p, const chain_maps &maps)
{
    const int chunk = (int)(blockIdx.x / (unsigned)p.heads), key_head = (int)(blockIdx.x - (unsigned)(chunk * p.heads));
    const int4 rows = p.table.chunk[chunk];
    if (rows.y == 0)
        return;
    DT_SHARED(shared);
    /* q and k are read before l is written: they share memory */
    float *l = (float *)shared, *rk = l + 2 * INTRA_SQUARE, *rq = rk + CHUNK;
    uint32_t k_tile = shared_address(shared), q_tile = k_tile + ROWS_BYTES;
    const int row = 16 * ((int)threadIdx.x >> 5) + (((int)threadIdx.x & 31) >> 2), first_head = key_head * p.group;
    float b[2][2];
    load_betas(b, p, rows, first_head, p.group < 2 ? 1 : 2, row);
    load_intra<ISA>(p, maps, rows, key_head, k_tile, q_tile, shared_address(rq + CHUNK));

    float kk[32];
    const int64_t first = (int64_t)rows.x * p.heads + key_head;
    mm_begin<ISA>();
    mm_ss_new<ISA, 64, 8, K_MAJOR, K_MAJOR>(kk, k_tile, PANEL, k_tile, PANEL);
    mm_commit<ISA>();
    row_norms(rq, p.rq + first, p.heads, q_tile, rows.y);
    row_norms(rk, p.rk + first, p.heads, k_tile, rows.y);
    mm_wait<ISA, 0>();
    block_sync();

    for (int i = 0; i < p.group; i += 2) {
        const int head = first_head + i, heads = i + 1 < p.group ? 2 : 1;
        if (i > 0)
            load_betas(b, p, rows, head, heads, row);
        DT_UNROLL
        for (int n = 0; n < 4; n++)
            b[n >> 1][n & 1] *= rk[row + 8 * (n >> 1)];
        store_l(l, kk, rk, b, row);
        block_sync();
        invert_chunk(l);
        for (int other = 0; other < heads; other++)
            write_at(p.at + ((int64_t)chunk * p.value_heads + head + other) * AT_BYTES, l + other * INTRA_SQUARE, rk);
        block_sync(); /* l is rewritten for the next heads */
    }
}
template <int ISA>
DT_KERNEL(INTRA_THREADS, 5)
gdn_intra_kernel(DT_GRID_CONSTANT gdn_params p, DT_GRID_CONSTANT chain_maps maps)
{
    if constexpr (DT_RUNS_HERE(ISA))
        gdn_intra_block<ISA>(p, maps);
}
#endif
