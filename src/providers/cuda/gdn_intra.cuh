/* Per chunk and key head: row norms, K K^T once, and for each value head At = diag(rk) (I + L)^-1 as bf16. */
#ifndef DT_CUDA_GDN_INTRA_CUH
#define DT_CUDA_GDN_INTRA_CUH
#include "providers/cuda/gdn_common.cuh"

enum { INTRA_THREADS = 128, INTRA_STRIDE = 68 /* floats a row: no bank conflicts in the fragments below */ };
enum { INTRA_SHARED = ROWS_BYTES + CHUNK * INTRA_STRIDE * 4 + 2 * CHUNK * 4 };

/* 1/sqrt(sum x^2 + 1e-6) of rows 16 warp .. 16 warp + 15; 16 lanes a row. */
DT_DEVICE void row_norms(float *norms, int64_t stride, const gdn_rows &t, int64_t row0, int rows, int head, int width,
                         float *shared_norms)
{
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    uint4 x[8];
    DT_UNROLL
    for (int i = 0; i < 8; i++) {
        int row = 16 * warp + 2 * i + (lane >> 4);
        bool inside = row < rows && (lane & 15) * 8 < width;
        x[i] = inside ? *(const uint4 *)(t.data + (row0 + row) * t.row + (int64_t)head * t.head + (lane & 15) * 8)
                      : make_uint4(0, 0, 0, 0);
    }
    DT_UNROLL
    for (int i = 0; i < 8; i++) {
        int row = 16 * warp + 2 * i + (lane >> 4);
        uint32_t w[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
        float sum = 0.0f;
        DT_UNROLL
        for (int j = 0; j < 4; j++)
            sum += bf16_low(w[j]) * bf16_low(w[j]) + bf16_high(w[j]) * bf16_high(w[j]);
        DT_UNROLL
        for (int n = 8; n; n /= 2)
            sum += shuffle_xor(sum, n);
        float norm = row < rows ? rsqrtf(sum + 1e-6f) : 0.0f;
        if ((lane & 15) == 0) {
            if (shared_norms)
                shared_norms[row] = norm;
            if (row < rows)
                norms[(row0 + row) * stride] = norm;
        }
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
        for (int m = 0; m < i; m++)
            sum += b[i * INTRA_STRIDE + m] * x[m];
        x[i] = i == column ? 1.0f : -sum; /* sum is 0 above the diagonal */
    }
    warp_sync();
    if (lane < 16) {
        DT_UNROLL
        for (int i = 0; i < 16; i++)
            b[i * INTRA_STRIDE + column] = x[i];
    }
}

/* With D1 (upper left) and D2 (lower right) inverted, the lower left block L21 of a 2 SIZE square becomes -D2 L21 D1.
 * This warp makes its rows row0 .. row0 + 15 and columns col0 .. col0 + 8 COLS - 1. tf32 products: the k index of the
 * second product is permuted (2t, 2t+1 for t, t+4), so that the first result is its A operand without shuffles. */
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
        uint32_t fa[4] = {to_tf32(a[0]), to_tf32(a[8 * INTRA_STRIDE]), to_tf32(a[4]), to_tf32(a[8 * INTRA_STRIDE + 4])};
        DT_UNROLL
        for (int j = 0; j < SIZE / 8; j++) {
            const float *b = l21 + (k + t) * INTRA_STRIDE + 8 * j + g;
            mma_tf32(w + 4 * j, fa, to_tf32(b[0]), to_tf32(b[4 * INTRA_STRIDE]));
        }
    }
    mm_clear(out);
    DT_UNROLL
    for (int k = 0; k < SIZE / 8; k++) {
        uint32_t fa[4] = {to_tf32(-w[4 * k]), to_tf32(-w[4 * k + 2]), to_tf32(-w[4 * k + 1]), to_tf32(-w[4 * k + 3])};
        DT_UNROLL
        for (int j = 0; j < COLS; j++) {
            const float *b = d1 + (8 * k + 2 * t) * INTRA_STRIDE + col0 + 8 * j + g;
            mma_tf32(out + 4 * j, fa, to_tf32(b[0]), to_tf32(b[INTRA_STRIDE]));
        }
    }
}
template <int COLS> DT_DEVICE void store_block(float *block, const float (&x)[4 * COLS], int row0, int col0)
{
    int lane = (int)threadIdx.x & 31;
    float *to = block + (row0 + (lane >> 2)) * INTRA_STRIDE + col0 + 2 * (lane & 3);
    DT_UNROLL
    for (int j = 0; j < COLS; j++) {
        to[8 * j] = x[4 * j];
        to[8 * j + 1] = x[4 * j + 1];
        to[8 * j + 8 * INTRA_STRIDE] = x[4 * j + 2];
        to[8 * j + 8 * INTRA_STRIDE + 1] = x[4 * j + 3];
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

template <int ISA> DT_DEVICE void gdn_intra_block(const gdn_params &p)
{
    int chunk = (int)blockIdx.x / p.heads, key_head = (int)blockIdx.x % p.heads;
    if (chunk >= p.table.counts[0])
        return;
    DT_SHARED(shared);
    float *l = (float *)(shared + ROWS_BYTES), *rk = l + CHUNK * INTRA_STRIDE;
    uint32_t k_tile = shared_address(shared);
    int4 rows = p.table.chunk[chunk];
    load_rows(k_tile, p.k, rows.x, rows.y, key_head, p.K, INTRA_THREADS);
    copy_commit();
    row_norms(p.rk + key_head, p.heads, p.k, rows.x, rows.y, key_head, p.K, rk);
    row_norms(p.rq + key_head, p.heads, p.q, rows.x, rows.y, key_head, p.K, NULL);
    copy_wait<0>();
    fence_async_proxy();
    block_sync();

    float kk[32];
    mm_begin<ISA>();
    mm_ss<ISA, 64, 8, K_MAJOR, K_MAJOR>(kk, k_tile, PANEL, k_tile, PANEL, false);
    mm_commit<ISA>();
    mm_wait<ISA, 0>();

    int thread = (int)threadIdx.x, lane = thread & 31, row = 16 * (thread >> 5) + (lane >> 2);
    for (int i = 0; i < p.group; i++) {
        int head = key_head * p.group + i;
        float b[2];
        DT_UNROLL
        for (int y = 0; y < 2; y++)
            b[y] =
                row + 8 * y < rows.y ? p.beta.data[(rows.x + row + 8 * y) * p.beta.row + head] * rk[row + 8 * y] : 0.0f;
        DT_UNROLL
        for (int c = 0; c < 32; c++) {
            int y = row + (c >> 1 & 1) * 8, x = 8 * (c >> 2) + 2 * (lane & 3) + (c & 1);
            l[y * INTRA_STRIDE + x] = y > x ? b[c >> 1 & 1] * rk[x] * kk[c] : 0.0f;
        }
        block_sync();
        invert_chunk(l);
        uint4 *image = (uint4 *)(p.at + ((int64_t)chunk * p.value_heads + head) * AT_BYTES);
        DT_UNROLL
        for (int c = 0; c < 4; c++) {
            int y = (thread >> 3) + 16 * c, unit = thread & 7;
            const float *from = l + y * INTRA_STRIDE + 8 * unit;
            float f = rk[y];
            image[y * 8 + (unit ^ (y & 7))] =
                make_uint4(pack_bf16(f * from[0], f * from[1]), pack_bf16(f * from[2], f * from[3]),
                           pack_bf16(f * from[4], f * from[5]), pack_bf16(f * from[6], f * from[7]));
        }
        block_sync(); /* l is rewritten for the next head */
    }
}
template <int ISA> DT_KERNEL(INTRA_THREADS, 4) gdn_intra_kernel(const gdn_params p)
{
    if constexpr (DT_RUNS_HERE(ISA))
        gdn_intra_block<ISA>(p);
}
#endif
