/* Matrix products of 64-row slabs by one warpgroup (four warps, 16 rows each), and the shared memory tiles they read.
 *
 * Two instruction sets, one meaning: ISA_MMA (mma.sync + ldmatrix, sm_80 and later) and ISA_WGMMA (sm_90a). In both, a
 * thread of warp w holds of the 64 x N result the rows 16 w + lane/4 (+8) and in each group j of eight columns the two
 * at 8 j + 2 (lane % 4): d[4j], d[4j+1] of the first row, d[4j+2], d[4j+3] of the second. An A operand in registers is
 * such a result packed to bf16, two column groups a step of 16.
 *
 * Tiles are bf16, 64 columns (128 bytes) a panel; the 16-byte unit u of row i of a panel lies at
 * i*128 + ((u ^ (i & 7)) * 16): what wgmma calls 128-byte swizzle, and what keeps ldmatrix free of bank conflicts. */
#ifndef DT_CUDA_MM_CUH
#define DT_CUDA_MM_CUH
#include "providers/cuda/ptx.cuh"

enum { ISA_MMA = 0, ISA_WGMMA = 1 };
enum { K_MAJOR = 0, MN_MAJOR = 1 };

DT_DEVICE uint32_t tile_unit(uint32_t panel, int row, int unit)
{
    return panel + (uint32_t)(row * 128 + ((unit * 16) ^ ((row & 7) * 16)));
}

/* Addresses of a K-major operand advance 32 bytes a step of 16 inside a panel, those of an MN-major one 16 rows. */
template <int MAJOR> DT_DEVICE uint32_t step_address(uint32_t tile, uint32_t panel_bytes, int step)
{
    return MAJOR == K_MAJOR ? tile + (uint32_t)(step >> 2) * panel_bytes + (uint32_t)(step & 3) * 32u
                            : tile + (uint32_t)step * 2048u;
}
/* One addition a step: what does not depend on it is the same for all of a product, and shared memory ends below 2^18.
 */
template <int MAJOR> DT_DEVICE uint64_t step_descriptor(uint32_t tile, uint32_t panel_bytes, int step)
{
    uint32_t leading = MAJOR == K_MAJOR ? 16u : panel_bytes, first = tile >> 4 | leading >> 4 << 16;
    uint32_t low = first + (step_address<MAJOR>(0, panel_bytes, step) >> 4);
    return (uint64_t)low | (uint64_t)(1024u >> 4 | 1u << 30) << 32;
}

/* The B fragments of columns 16 j .. 16 j + 15 at one step: b[0], b[1] of the first eight, b[2], b[3] of the others. */
template <int MAJOR> DT_DEVICE void load_b(uint32_t (&b)[4], uint32_t tile, uint32_t panel_bytes, int step, int j)
{
    int lane = (int)threadIdx.x & 31;
    if (MAJOR == K_MAJOR) {
        int row = (lane & 7) + (lane >> 4) * 8, swizzle = ((lane & 7) ^ ((lane >> 3) & 1)) * 16;
        ldmatrix(b, tile + (uint32_t)(row * 128 + (swizzle ^ ((step & 3) * 32))) + (uint32_t)(step >> 2) * panel_bytes +
                        (uint32_t)j * 2048u);
    } else {
        int row = lane & 15, swizzle = ((lane & 7) ^ (lane >> 4)) * 16;
        ldmatrix_trans(b, tile + (uint32_t)(row * 128 + (swizzle ^ ((j & 3) * 32))) + (uint32_t)(j >> 2) * panel_bytes +
                              (uint32_t)step * 2048u);
    }
}
/* The A fragment of rows row0 .. row0 + 15 (row0 a multiple of 16) at one step. */
template <int MAJOR> DT_DEVICE void load_a(uint32_t (&a)[4], uint32_t tile, uint32_t panel_bytes, int step, int row0)
{
    int lane = (int)threadIdx.x & 31;
    if (MAJOR == K_MAJOR) {
        int row = row0 + (lane & 15), swizzle = ((lane & 7) ^ (lane >> 4)) * 16;
        ldmatrix(a, tile + (uint32_t)(row * 128 + (swizzle ^ ((step & 3) * 32))) + (uint32_t)(step >> 2) * panel_bytes);
    } else {
        int row = (lane & 7) + (lane >> 4) * 8, swizzle = ((lane & 7) ^ ((row0 >> 3) & 7) ^ ((lane >> 3) & 1)) * 16;
        ldmatrix_trans(a, tile + (uint32_t)(row * 128 + swizzle) + (uint32_t)(row0 >> 6) * panel_bytes +
                              (uint32_t)step * 2048u);
    }
}

/* Products are asynchronous on Hopper: mm_begin, any number of products, mm_commit, and mm_wait before results or
 * register operands are touched. With mma.sync all four are nothing. */
template <int ISA> DT_DEVICE void mm_begin()
{
    if (ISA == ISA_WGMMA)
        wgmma_fence();
}
template <int ISA> DT_DEVICE void mm_commit()
{
    if (ISA == ISA_WGMMA)
        wgmma_commit();
}
template <int ISA, int PENDING> DT_DEVICE void mm_wait()
{
    if (ISA == ISA_WGMMA)
        wgmma_wait<PENDING>();
}

/* After mm_wait: results are read here, not earlier. The compiler knows no dependency between them and the wait, and
 * what it moves across makes it run all products one after the other. */
template <int ISA, int N> DT_DEVICE void mm_read(float (&d)[N])
{
    if (ISA == ISA_WGMMA) {
        DT_UNROLL
        for (int i = 0; i < N; i++)
            keep_order(d[i]);
    }
}

template <int N> DT_DEVICE void mm_clear(float (&d)[N])
{
    DT_UNROLL
    for (int i = 0; i < N; i++)
        d[i] = 0.0f;
}

template <int N, int MAJOR>
DT_DEVICE void mma_step(float (&d)[N / 2], const uint32_t (&a)[4], uint32_t b_tile, uint32_t b_panel, int step)
{
    DT_UNROLL
    for (int j = 0; j < N / 16; j++) {
        uint32_t b[4];
        load_b<MAJOR>(b, b_tile, b_panel, step, j);
        mma_bf16(d + 8 * j, a, b[0], b[1]);
        mma_bf16(d + 8 * j + 4, a, b[2], b[3]);
    }
}

/* d (+)= A B over STEPS x 16; A in registers. */
template <int ISA, int N, int STEPS, int B_MAJOR>
DT_DEVICE void mm_rs(float (&d)[N / 2], const uint32_t (&a)[STEPS][4], uint32_t b_tile, uint32_t b_panel,
                     bool accumulate)
{
    if (ISA == ISA_WGMMA) {
        DT_UNROLL
        for (int s = 0; s < STEPS; s++)
            wgmma_rs<N, B_MAJOR>(d, a[s], step_descriptor<B_MAJOR>(b_tile, b_panel, s), accumulate || s > 0);
    } else {
        if (!accumulate)
            mm_clear(d);
        DT_UNROLL
        for (int s = 0; s < STEPS; s++)
            mma_step<N, B_MAJOR>(d, a[s], b_tile, b_panel, s);
    }
}
/* d (+)= A B over STEPS x 16; A in shared memory, 64 rows. */
template <int ISA, int N, int STEPS, int A_MAJOR, int B_MAJOR>
DT_DEVICE void mm_ss(float (&d)[N / 2], uint32_t a_tile, uint32_t a_panel, uint32_t b_tile, uint32_t b_panel,
                     bool accumulate)
{
    if (ISA == ISA_WGMMA) {
        DT_UNROLL
        for (int s = 0; s < STEPS; s++)
            wgmma_ss<N, A_MAJOR, B_MAJOR>(d, step_descriptor<A_MAJOR>(a_tile, a_panel, s),
                                          step_descriptor<B_MAJOR>(b_tile, b_panel, s), accumulate || s > 0);
    } else {
        if (!accumulate)
            mm_clear(d);
        int row0 = (((int)threadIdx.x >> 5) & 3) * 16;
        DT_UNROLL
        for (int s = 0; s < STEPS; s++) {
            uint32_t a[4];
            load_a<A_MAJOR>(a, a_tile, a_panel, s, row0);
            mma_step<N, B_MAJOR>(d, a, b_tile, b_panel, s);
        }
    }
}

/* d = A B: with wgmma the compiler then knows that d was nothing before, else it keeps registers for it. */
template <int ISA, int N, int STEPS, int B_MAJOR>
DT_DEVICE void mm_rs_new(float (&d)[N / 2], const uint32_t (&a)[STEPS][4], uint32_t b_tile, uint32_t b_panel)
{
    if (ISA == ISA_WGMMA) {
        wgmma_rs_new<N, B_MAJOR>(d, a[0], step_descriptor<B_MAJOR>(b_tile, b_panel, 0));
        DT_UNROLL
        for (int s = 1; s < STEPS; s++)
            wgmma_rs<N, B_MAJOR>(d, a[s], step_descriptor<B_MAJOR>(b_tile, b_panel, s), true);
    } else
        mm_rs<ISA, N, STEPS, B_MAJOR>(d, a, b_tile, b_panel, false);
}
template <int ISA, int N, int STEPS, int A_MAJOR, int B_MAJOR>
DT_DEVICE void mm_ss_new(float (&d)[N / 2], uint32_t a_tile, uint32_t a_panel, uint32_t b_tile, uint32_t b_panel)
{
    if (ISA == ISA_WGMMA) {
        wgmma_ss_new<N, A_MAJOR, B_MAJOR>(d, step_descriptor<A_MAJOR>(a_tile, a_panel, 0),
                                          step_descriptor<B_MAJOR>(b_tile, b_panel, 0));
        DT_UNROLL
        for (int s = 1; s < STEPS; s++)
            wgmma_ss<N, A_MAJOR, B_MAJOR>(d, step_descriptor<A_MAJOR>(a_tile, a_panel, s),
                                          step_descriptor<B_MAJOR>(b_tile, b_panel, s), true);
    } else
        mm_ss<ISA, N, STEPS, A_MAJOR, B_MAJOR>(d, a_tile, a_panel, b_tile, b_panel, false);
}

/* A result as an A operand: N columns become N/16 steps. */
template <int N> DT_DEVICE void pack_operand(uint32_t (&a)[N / 16][4], const float (&d)[N / 2])
{
    DT_UNROLL
    for (int s = 0; s < N / 16; s++) {
        DT_UNROLL
        for (int i = 0; i < 4; i++)
            a[s][i] = pack_bf16(d[8 * s + 2 * i], d[8 * s + 2 * i + 1]);
    }
}

/* Stores one step of a packed result (16 rows from row0, columns 16 s .. 16 s + 15) into a tile. */
template <int ISA>
DT_DEVICE void store_operand(uint32_t tile, uint32_t panel_bytes, int row0, int s, const uint32_t (&a)[4])
{
    int lane = (int)threadIdx.x & 31;
    uint32_t panel = tile + (uint32_t)(s >> 2) * panel_bytes;
    if (ISA == ISA_WGMMA) { /* matrices a[0..3]: (rows, columns) = (0,0) (8,0) (0,8) (8,8) */
        int row = row0 + (lane & 15), swizzle = ((lane & 7) ^ (lane >> 4)) * 16;
        stmatrix(panel + (uint32_t)(row * 128 + (swizzle ^ ((s & 3) * 32))), a);
    } else {
        int row = row0 + lane / 4, swizzle = (lane / 4) * 16;
        DT_UNROLL
        for (int i = 0; i < 4; i++)
            store_shared4(panel + (uint32_t)(row * 128 + (lane & 3) * 4 + (swizzle ^ ((s & 3) * 32 + (i >> 1) * 16))) +
                              (uint32_t)(i & 1) * 1024u,
                          a[i]);
    }
}
/* Stores one step of a packed result transposed: its columns become rows 16 s .. of the tile, its rows columns col0 ..
 * (a multiple of 16). */
template <int ISA>
DT_DEVICE void store_operand_trans(uint32_t tile, uint32_t panel_bytes, int col0, int s, const uint32_t (&a)[4])
{
    int lane = (int)threadIdx.x & 31, unit0 = (col0 >> 3) & 7;
    uint32_t panel = tile + (uint32_t)(col0 >> 6) * panel_bytes + (uint32_t)s * 2048u;
    if (ISA == ISA_WGMMA) { /* matrices a[0..3]: (rows, columns) = (0,0) (8,0) (0,8) (8,8) */
        int row = (lane & 7) + (lane >> 4) * 8;
        stmatrix_trans(panel + (uint32_t)(row * 128 + ((lane & 7) ^ unit0 ^ ((lane >> 3) & 1)) * 16), a);
    } else {
        DT_UNROLL
        for (int i = 0; i < 4; i++) {
            int unit = unit0 + (i & 1), row = (i >> 1) * 8 + 2 * (lane & 3);
            uint32_t in_unit = (uint32_t)(lane / 4) * 2u;
            store_shared2(tile_unit(panel, row, unit) + in_unit, a[i] & 0xffffu);
            store_shared2(tile_unit(panel, row + 1, unit) + in_unit, a[i] >> 16);
        }
    }
}
#endif
