/* Per chunk and key head: row norms, K K^T once, and for each value head At = diag(rk) (I + L)^-1 as bf16. */
#ifndef DT_CUDA_GDN_INTRA_CUH
#define DT_CUDA_GDN_INTRA_CUH
#include "providers/cuda/gdn_common.cuh"

enum { INTRA_THREADS = 128, INTRA_STRIDE = 68 /* floats a row: no bank conflicts in the fragments below */ };
enum { INTRA_SHARED = ROWS_BYTES + CHUNK * INTRA_STRIDE * 4 + 2 * CHUNK * 4 + 16 };

/* 1/sqrt(sum x^2 + 1e-6) of each row, from the diagonal of X X^T; 0 past `rows`. */
DT_DEVICE void diagonal_norms(float *shared_norms, float *norms, int64_t stride, const float (&xx)[32], int rows)
{
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, g = lane >> 2;
    if ((g >> 1) != (lane & 3))
        return; /* column 8j + 2 (lane % 4) + {0, 1} meets row 16 warp + lane/4 (+8) in these lanes only */
    DT_UNROLL
    for (int y = 0; y < 2; y++) {
        float sum = 0.0f;
        DT_UNROLL
        for (int w = 0; w < 4; w++) { /* register indices must be constants */
            float candidate = g & 1 ? xx[4 * (2 * w + y) + 2 * y + 1] : xx[4 * (2 * w + y) + 2 * y];
            sum = w == warp ? candidate : sum;
        }
        int row = 16 * warp + g + 8 * y;
        float norm = row < rows ? rsqrtf(sum + 1e-6f) : 0.0f;
        shared_norms[row] = norm;
        if (row < rows)
            norms[row * stride] = norm;
    }
}

/* The 16 x 16 diagonal block at `b` (unit lower triangular, strict part in memory) becomes its inverse. By one warp;
 * lane j computes column j by substitution. */
DT_DEVICE void invert_diagonal(float *b)
{
    int lane = (int)threadIdx.x & 31, column = lane & 15;
    float x[16];
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
    if (lane < 16) {
        DT_UNROLL
        for (int i = 0; i < 16; i++)
            b[i * INTRA_STRIDE + column] = round_tf32(x[i]);
    }
}

/* With D1 (upper left) and D2 (lower right) inverted, the lower left block L21 of a 2 SIZE square becomes -D2 L21 D1.
 * This warp makes its rows row0 .. row0 + 15 and columns col0 .. col0 + 8 COLS - 1. tf32 products: the k index of the
 * second product is permuted (2t, 2t+1 for t, t+4), so that the first result is its A operand without shuffles. All
 * that lies in shared memory is rounded to tf32 already. */
template <int SIZE, int COLS>
DT_DEVICE void merge_blocks(float (&out)[4 * COLS], const float *square, int row0, int col0)
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
        for (int j = 0; j < COLS; j++) {
            const float *b = d1 + (8 * k + 2 * t) * INTRA_STRIDE + col0 + 8 * j + g;
            mma_tf32(out + 4 * j, fa, float_bits(b[0]), float_bits(b[INTRA_STRIDE]));
        }
    }
}
template <int COLS> DT_DEVICE void store_block(float *block, const float (&x)[4 * COLS], int row0, int col0)
{
    int lane = (int)threadIdx.x & 31;
    float *to = block + (row0 + (lane >> 2)) * INTRA_STRIDE + col0 + 2 * (lane & 3);
    DT_UNROLL
    for (int j = 0; j < COLS; j++) {
        to[8 * j] = round_tf32(x[4 * j]);
        to[8 * j + 1] = round_tf32(x[4 * j + 1]);
        to[8 * j + 8 * INTRA_STRIDE] = round_tf32(x[4 * j + 2]);
        to[8 * j + 8 * INTRA_STRIDE + 1] = round_tf32(x[4 * j + 3]);
    }
}

/* L in shared memory (strict lower part, zeros elsewhere) becomes (I + L)^-1. */
DT_DEVICE void invert_chunk(float *l)
{
    int warp = (int)threadIdx.x >> 5;
    invert_diagonal(l + 16 * warp * (INTRA_STRIDE + 1));
    block_sync();
    {
        float *square = l + (warp >> 1) * 32 * (INTRA_STRIDE + 1), x[4];
        merge_blocks<16, 1>(x, square, 0, 8 * (warp & 1));
        block_sync();
        store_block<1>(square + 16 * INTRA_STRIDE, x, 0, 8 * (warp & 1));
        block_sync();
    }
    float x[8];
    int row0 = 16 * (warp & 1), col0 = 16 * (warp >> 1);
    merge_blocks<32, 2>(x, l, row0, col0);
    block_sync();
    store_block<2>(l + 32 * INTRA_STRIDE, x, row0, col0);
    block_sync();
}

/* L = slow(beta_i rk_i rk_j k_i.k_j), rounded to tf32, zeros on and above the diagonal. */
DT_DEVICE void store_l(float *l, const float (&kk)[32], const float *rk, const float (&b)[2], int row)
{
    int t = 2 * ((int)threadIdx.x & 3);
    DT_UNROLL
    for (int j = 0; j < 8; j++) {
        int x = 8 * j + t;
        float2 r = *(const float2 *)(rk + x);
        DT_UNROLL
        for (int y = 0; y < 2; y++) {
            float first = round_tf32(b[y] * r.x * kk[4 * j + 2 * y]),
                  second = round_tf32(b[y] * r.y * kk[4 * j + 2 * y + 1]);
            int i = row + 8 * y;
            *(float2 *)(l + i * INTRA_STRIDE + x) = make_float2(i > x ? first : 0.0f, i > x + 1 ? second : 0.0f);
        }
    }
}
/* At = diag(rk) (I + L)^-1 to its image. */
DT_DEVICE void write_at(uint4 *image, const float *l, const float *rk)
{
    int thread = (int)threadIdx.x;
    DT_UNROLL
    for (int c = 0; c < 4; c++) {
        int y = (thread >> 3) + 16 * c, unit = thread & 7;
        const float4 *from = (const float4 *)(l + y * INTRA_STRIDE + 8 * unit);
        float4 u = from[0], v = from[1];
        float f = rk[y];
        image[y * 8 + (unit ^ (y & 7))] = make_uint4(pack_bf16(f * u.x, f * u.y), pack_bf16(f * u.z, f * u.w),
                                                     pack_bf16(f * v.x, f * v.y), pack_bf16(f * v.z, f * v.w));
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

template <int ISA> DT_DEVICE void gdn_intra_block(const gdn_params &p, const chain_maps &maps)
{
    int chunk = (int)(blockIdx.x / (unsigned)p.heads), key_head = (int)(blockIdx.x - (unsigned)(chunk * p.heads));
    if (chunk >= p.table.counts[0])
        return;
    DT_SHARED(shared);
    /* q is read before l is written: they share memory */
    float *l = (float *)(shared + ROWS_BYTES), *rk = l + CHUNK * INTRA_STRIDE, *rq = rk + CHUNK;
    uint32_t k_tile = shared_address(shared), q_tile = k_tile + ROWS_BYTES;
    int4 rows = p.table.chunk[chunk];
    load_intra<ISA>(p, maps, rows, key_head, k_tile, q_tile, shared_address(rq + CHUNK));

    float kk[32];
    {
        float qq[32];
        mm_begin<ISA>();
        mm_ss<ISA, 64, 8, K_MAJOR, K_MAJOR>(kk, k_tile, PANEL, k_tile, PANEL, false);
        mm_ss<ISA, 64, 8, K_MAJOR, K_MAJOR>(qq, q_tile, PANEL, q_tile, PANEL, false);
        mm_commit<ISA>();
        mm_wait<ISA, 0>();
        int64_t first = (int64_t)rows.x * p.heads + key_head;
        diagonal_norms(rk, p.rk + first, p.heads, kk, rows.y);
        diagonal_norms(rq, p.rq + first, p.heads, qq, rows.y);
    }
    block_sync();

    int lane = (int)threadIdx.x & 31, row = 16 * ((int)threadIdx.x >> 5) + (lane >> 2);
    for (int i = 0; i < p.group; i++) {
        int head = key_head * p.group + i;
        const float *beta = p.beta.data + (int64_t)rows.x * p.beta.row + head;
        float b[2];
        DT_UNROLL
        for (int y = 0; y < 2; y++)
            b[y] = row + 8 * y < rows.y ? beta[(row + 8 * y) * p.beta.row] * rk[row + 8 * y] : 0.0f;
        store_l(l, kk, rk, b, row);
        block_sync();
        invert_chunk(l);
        write_at((uint4 *)(p.at + ((int64_t)chunk * p.value_heads + head) * AT_BYTES), l, rk);
        block_sync(); /* l is rewritten for the next head */
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
