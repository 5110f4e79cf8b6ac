/* What one warpgroup does with a 64-row result in registers (mm.cuh says which thread holds what): factors, row and
 * column sums, products with a tile element by element, triangles. */
#ifndef DT_CUDA_GDN_SLAB_CUH
#define DT_CUDA_GDN_SLAB_CUH
#include "providers/cuda/gdn_common.cuh"

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

/* Whether column 8 group + slab_column() + odd is at or left of the diagonal in row slab_row() + 8 second. */
DT_DEVICE bool at_or_below(int group, int odd, int second)
{
    return slab_row() - slab_column() >= 8 * (group - second) + odd;
}
DT_DEVICE float row_total(float x)
{
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}
/* Totals of this thread's two rows to `sums`. */
DT_DEVICE void store_row_totals(float *sums, float first, float second)
{
    first = row_total(first);
    second = row_total(second);
    if (slab_column() == 0) {
        sums[slab_row()] = first;
        sums[slab_row() + 8] = second;
    }
}
/* Row sums of (d o tile), as the diagonal of packed d times the tile transposed: a warp needs 16 x 16 of it. sum[0],
 * [1] of rows slab_row(), slab_row() + 8, in the lanes that hold the diagonal. */
DT_DEVICE bool on_diagonal()
{
    return (((int)threadIdx.x & 31) >> 3) == ((int)threadIdx.x & 3);
}
DT_DEVICE void dot_rows(float (&sum)[2], const float (&d)[64], uint32_t tile)
{
    float low[4] = {0.0f, 0.0f, 0.0f, 0.0f}, high[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    DT_UNROLL
    for (int s = 0; s < 8; s++) {
        uint32_t a[4], x[4];
        load_a<K_MAJOR>(x, tile, PANEL, s, 16 * slab_warp());
        DT_UNROLL
        for (int c = 0; c < 4; c++)
            a[c] = pack_bf16(d[8 * s + 2 * c], d[8 * s + 2 * c + 1]);
        mma_bf16(low, a, x[0], x[2]);
        mma_bf16(high, a, x[1], x[3]);
    }
    const int odd = (int)threadIdx.x >> 2 & 1;
    sum[0] = choose(odd, low[1], low[0]);
    sum[1] = choose(odd, high[3], high[2]);
}
/* Two lanes that differ in one bit share 2 HALF sums: the one with the bit (`upper`) keeps the upper half of them. */
template <int HALF> DT_DEVICE void halve(float (&c)[16], int upper)
{
    DT_UNROLL
    for (int i = 0; i < HALF; i++)
        c[i] = choose(upper, c[i + HALF], c[i]) + shuffle_xor(choose(upper, c[i], c[i + HALF]), 2 * HALF);
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
    halve<8>(c, lane & 16);
    halve<4>(c, lane & 8);
    halve<2>(c, lane & 4);
    /* c[0], c[1]: the two columns of group j = the lane's row bits, highest first */
    int j = (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1);
    sums[8 * j + slab_column()] = c[0];
    sums[8 * j + slab_column() + 1] = c[1];
}
/* The part i >= j of a 64 x 64 result, packed, to a tile. */
template <int ISA> DT_DEVICE void store_lower(uint32_t tile, const float (&d)[32])
{
    uint32_t a[4][4];
    DT_UNROLL
    for (int s = 0; s < 4; s++) {
        DT_UNROLL
        for (int c = 0; c < 4; c++) {
            int group = 2 * s + (c >> 1), second = c & 1;
            a[s][c] = pack_bf16(at_or_below(group, 0, second) ? d[8 * s + 2 * c] : 0.0f,
                                at_or_below(group, 1, second) ? d[8 * s + 2 * c + 1] : 0.0f);
        }
        store_operand<ISA>(tile, PANEL, 16 * slab_warp(), s, a[s]);
    }
}
#endif
