/* Gradients of the low-rank adapters, bf16 rows of whole 16-byte units and at most 32 ranks: every upstream gradient,
 * the input and dx pass through the chip once.
 *
 *     linear_output_gradient_kernel  dY_j: sums of dB_j = dY_j^T U_j, and dY_j B_j of a few columns
 *     linear_low_sum_kernel          dU from those, dB from its ranges of rows
 *     linear_input_gradient_kernel   x and dx: sums of dA = dU^T (keep x); dx += scale keep (dU A)
 *     linear_input_sum_kernel        dA from its ranges of rows
 *
 * A block streams tiles of 128 rows by 128 columns of a range of rows. The tile is read as it lies for products over
 * columns (a warp: 16 rows) and transposed for products over rows (a warp: 16 columns): no sum crosses warps. One tile
 * is on its way while one is used; more blocks a multiprocessor give more than more tiles a block. What blocks leave is
 * f32 in the workspace and is added in an order that depends on shapes only. */
#ifndef DT_CUDA_LINEAR_GRADIENT_CUH
#define DT_CUDA_LINEAR_GRADIENT_CUH
#include "providers/cuda/linear.cuh"

enum {
    LINEAR_SIDE = 128,                          /* rows and columns of a tile */
    LINEAR_PANEL_BYTES = LINEAR_SIDE * 128,     /* 64 of its columns (mm.cuh) */
    LINEAR_BODY_BYTES = 2 * LINEAR_PANEL_BYTES, /* a tile */
    LINEAR_PLANE_BYTES = LINEAR_SIDE * 16,      /* eight ranks of 128 rows, 16 bytes a row */
    LINEAR_ADDENDS = 4                          /* lanes that share a sum of dU */
};

/* Rows [t0, t0 + 128) by columns [i0, i0 + 128) of a [T, width] tensor; zeros outside. */
DT_DEVICE void linear_fetch_body(uint32_t to, const uint16_t *rows, int64_t pitch, int64_t t0, int64_t i0, int64_t T,
                                 int64_t width)
{
    int unit = (int)threadIdx.x % 16, row = (int)threadIdx.x / 16;
    int64_t i = i0 + unit * 8;
    const uint16_t *from = rows + (t0 + row) * pitch + i;
    DT_UNROLL
    for (int k = 0; k < LINEAR_SIDE * 16 / LINEAR_THREADS; k++) {
        const int step = LINEAR_THREADS / 16;
        bool inside = t0 + row + k * step < T && i < width;
        copy_async16(tile_unit(to + (uint32_t)(unit / 8) * LINEAR_PANEL_BYTES, row + k * step, unit % 8),
                     inside ? from + k * step * pitch : rows, inside ? 16 : 0);
    }
}
/* `planes` planes of 128 rows; plane k starts at column k % groups * 8 + k / groups * period of `low` and is zero when
 * k % groups * 8 >= width. */
DT_DEVICE void linear_fetch_planes(uint32_t to, const uint16_t *low, int64_t pitch, int64_t t0, int64_t T, int planes,
                                   int groups, int period, int width)
{
    for (int k = (int)threadIdx.x; k < planes * LINEAR_SIDE; k += LINEAR_THREADS) {
        int plane = k % planes, row = k / planes, column = plane % groups * 8;
        bool inside = t0 + row < T && column < width;
        copy_async16(to + (uint32_t)(plane * LINEAR_PLANE_BYTES + row * 16),
                     inside ? low + (t0 + row) * pitch + column + plane / groups * period : low, inside ? 16 : 0);
    }
}
/* The B fragments of rows 32 s .. 32 s + 31 of a plane, two steps. */
DT_DEVICE void linear_load_plane(uint32_t (&b)[4], uint32_t plane, int s)
{
    ldmatrix_trans(b, plane + (uint32_t)(s * 32 + ((int)threadIdx.x & 31)) * 16u);
}

/* ---------------------------------------------------------------- dB and dY B */

struct linear_output_part {
    const uint16_t *dy, *b, *u; /* b, u: packed B and U from column `first` on */
    int64_t dy_pitch, b_pitch, width;
    float *du;      /* [blocks][T_cap][8 GROUPS]: dY B of the columns of a block; NULL: not wanted */
    float *db;      /* [ranges][width][8 GROUPS] */
    float *dlora_b; /* added to; NULL: not wanted */
    int64_t dlora_b_pitch;
    int32_t blocks, first, rank;    /* columns of U and dU from `first`, a multiple of 8 */
    int32_t skipped;                /* of those, what comes before the part's own */
    int64_t first_block, first_sum; /* blocks and elements of dB of all parts before */
};
struct linear_output_params {
    linear_output_part part[LINEAR_PARTS];
    int32_t parts, groups, ranges, tiles; /* tiles of rows a range */
    int32_t R_padded, period, copies;     /* U comes in so many parts, `period` columns apart: their sum counts */
    int64_t T, T_cap, u_pitch, du_pitch;
    uint16_t *du;
};
DT_DEVICE linear_output_part linear_output_part_of(const linear_output_params &p, int64_t block)
{
    linear_output_part found = p.part[0];
    DT_UNROLL
    for (int i = 1; i < LINEAR_PARTS; i++)
        if (i < p.parts && block >= p.part[i].first_block)
            found = p.part[i];
    return found;
}
/* dY B of the warp's rows of a tile. */
template <int GROUPS> DT_DEVICE void linear_multiply_low(float (&du)[GROUPS][4], uint32_t tile, uint32_t planes)
{
    DT_UNROLL
    for (int s = 0; s < 4; s++) {
        uint32_t a[2][4], b[GROUPS][4];
        load_a<K_MAJOR>(a[0], tile, LINEAR_PANEL_BYTES, 2 * s, (int)threadIdx.x / 32 * 16);
        load_a<K_MAJOR>(a[1], tile, LINEAR_PANEL_BYTES, 2 * s + 1, (int)threadIdx.x / 32 * 16);
        DT_UNROLL
        for (int g = 0; g < GROUPS; g++)
            linear_load_plane(b[g], planes + (uint32_t)g * LINEAR_PLANE_BYTES, s);
        DT_UNROLL
        for (int g = 0; g < GROUPS; g++) {
            mma_bf16(du[g], a[0], b[g][0], b[g][1]);
            mma_bf16(du[g], a[1], b[g][2], b[g][3]);
        }
    }
}
/* dY^T U of the warp's columns of a tile. */
template <int GROUPS>
DT_DEVICE void linear_multiply_output(float (&db)[GROUPS][4], uint32_t tile, uint32_t planes, int copies)
{
    DT_UNROLL
    for (int s = 0; s < 4; s++) {
        uint32_t a[2][4], b[GROUPS][4];
        load_a<MN_MAJOR>(a[0], tile, LINEAR_PANEL_BYTES, 2 * s, (int)threadIdx.x / 32 * 16);
        load_a<MN_MAJOR>(a[1], tile, LINEAR_PANEL_BYTES, 2 * s + 1, (int)threadIdx.x / 32 * 16);
        for (int copy = 0; copy < copies; copy++) {
            DT_UNROLL
            for (int g = 0; g < GROUPS; g++)
                linear_load_plane(b[g], planes + (uint32_t)(copy * GROUPS + g) * LINEAR_PLANE_BYTES, s);
            DT_UNROLL
            for (int g = 0; g < GROUPS; g++) {
                mma_bf16(db[g], a[0], b[g][0], b[g][1]);
                mma_bf16(db[g], a[1], b[g][2], b[g][3]);
            }
        }
    }
}
/* Sums of a warp's 16 rows into a [limit, 8 GROUPS] matrix. */
template <int GROUPS>
DT_DEVICE void linear_store_sums(float *to, const float (&sum)[GROUPS][4], int64_t row0, int64_t limit)
{
    int lane = (int)threadIdx.x & 31;
    int64_t row = row0 + (int)threadIdx.x / 32 * 16 + lane / 4;
    DT_UNROLL
    for (int h = 0; h < 2; h++) {
        DT_UNROLL
        for (int g = 0; g < GROUPS; g++)
            if (row + 8 * h < limit)
                *(float2 *)(to + (row + 8 * h) * (8 * GROUPS) + 8 * g + 2 * (lane & 3)) =
                    make_float2(sum[g][2 * h], sum[g][2 * h + 1]);
    }
}
/* WIDE x 128 columns of one part against a range of rows. Block numbers: ranges vary fastest. */
template <int GROUPS, int WIDE>
DT_DEVICE void linear_output_block(const linear_output_params &p, int64_t number, const unsigned char *shared)
{
    const linear_output_part part = linear_output_part_of(p, number / p.ranges);
    int64_t block = number / p.ranges - part.first_block, range = number % p.ranges;
    int64_t column0 = block * WIDE * LINEAR_SIDE, row0 = range * p.tiles * LINEAR_SIDE;
    int planes = GROUPS * p.copies;
    uint32_t b_planes = shared_address(shared), stage = b_planes + WIDE * GROUPS * LINEAR_PLANE_BYTES,
             stage_bytes = LINEAR_BODY_BYTES + (uint32_t)planes * LINEAR_PLANE_BYTES, to = 0, from = 0;
    int tiles = (int)((p.T - row0 + LINEAR_SIDE - 1) / LINEAR_SIDE);
    tiles = tiles < 0 ? 0 : tiles < p.tiles ? tiles : p.tiles;
    bool low = part.du != NULL;
    float db[WIDE][GROUPS][4];
    int fetched = 0;
    auto fetch = [&]() { /* the next tile: columns, then rows */
                         int64_t t0 = row0 + fetched / WIDE * LINEAR_SIDE;
                         if (fetched < tiles * WIDE) {
                             linear_fetch_body(stage + to, part.dy, part.dy_pitch, t0,
                                               column0 + fetched % WIDE * LINEAR_SIDE, p.T, part.width);
                             linear_fetch_planes(stage + to + LINEAR_BODY_BYTES, part.u, p.u_pitch, t0, p.T, planes,
                                                 GROUPS, p.period, p.R_padded - part.first);
                         }
                         copy_commit();
                         fetched++;
                         to = stage_bytes - to;
    };
    for (int c = 0; low && c < WIDE; c++)
        linear_fetch_planes(b_planes + (uint32_t)(c * GROUPS) * LINEAR_PLANE_BYTES, part.b, part.b_pitch,
                            column0 + c * LINEAR_SIDE, part.width, GROUPS, GROUPS, 0, p.R_padded - part.first);
    fetch();
    DT_UNROLL
    for (int c = 0; c < WIDE; c++) {
        DT_UNROLL
        for (int g = 0; g < GROUPS; g++)
            mm_clear(db[c][g]);
    }
    for (int tile = 0; tile < tiles; tile++) {
        float du[GROUPS][4];
        DT_UNROLL
        for (int g = 0; g < GROUPS; g++)
            mm_clear(du[g]);
        DT_UNROLL
        for (int c = 0; c < WIDE; c++) {
            copy_wait<0>();
            block_sync();
            fetch();
            if (column0 + c * LINEAR_SIDE < part.width) {
                if (low)
                    linear_multiply_low<GROUPS>(du, stage + from,
                                                b_planes + (uint32_t)(c * GROUPS) * LINEAR_PLANE_BYTES);
                linear_multiply_output<GROUPS>(db[c], stage + from, stage + from + LINEAR_BODY_BYTES, p.copies);
            }
            from = stage_bytes - from;
        }
        if (low)
            linear_store_sums<GROUPS>(part.du + block * p.T_cap * (8 * GROUPS), du, row0 + tile * LINEAR_SIDE, p.T);
    }
    DT_UNROLL
    for (int c = 0; c < WIDE; c++)
        linear_store_sums<GROUPS>(part.db + range * part.width * (8 * GROUPS), db[c], column0 + c * LINEAR_SIDE,
                                  part.width);
}
template <int GROUPS, int WIDE> DT_KERNEL(LINEAR_THREADS, 2) linear_output_gradient_kernel(const linear_output_params p)
{
    DT_SHARED(shared);
    linear_output_block<GROUPS, WIDE>(p, (int64_t)blockIdx.x, shared);
}

/* Four ranks of a row of dU; LINEAR_ADDENDS lanes take turns in the blocks of columns. */
template <int GROUPS> DT_DEVICE void linear_sum_low(const linear_output_params &p, int64_t k)
{
    int quads = p.R_padded / 4, lane = (int)(k % 32), turn = lane / 8;
    int64_t at = k / 32 * 8 + lane % 8, t = at / quads;
    int column = (int)(at % quads) * 4;
    float4 sum = make_float4(0, 0, 0, 0);
    DT_UNROLL
    for (int j = 0; j < LINEAR_PARTS; j++) {
        const linear_output_part &part = p.part[j];
        int own = column - part.first;
        if (j >= p.parts || own < 0 || own >= (part.skipped + part.rank + 7) / 8 * 8 || t >= p.T)
            continue;
        const float *from = part.du + t * (8 * GROUPS) + own;
        DT_UNROLL_BY(8)
        for (int block = turn; block < part.blocks; block += LINEAR_ADDENDS) {
            float4 x = *(const float4 *)(from + block * p.T_cap * (8 * GROUPS));
            sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
        }
    }
    DT_UNROLL
    for (int lanes = 8; lanes < 32; lanes *= 2) {
        sum.x += shuffle_xor(sum.x, lanes), sum.y += shuffle_xor(sum.y, lanes);
        sum.z += shuffle_xor(sum.z, lanes), sum.w += shuffle_xor(sum.w, lanes);
    }
    if (turn == 0 && t < p.T)
        *(uint2 *)(p.du + t * p.du_pitch + column) = make_uint2(pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w));
}
template <int GROUPS> DT_DEVICE void linear_sum_outputs(const linear_output_params &p, int64_t k)
{
    DT_UNROLL
    for (int j = 0; j < LINEAR_PARTS; j++) {
        const linear_output_part &part = p.part[j];
        int64_t elements = part.width * (8 * GROUPS), at = k - part.first_sum;
        int rank = (int)(at % (8 * GROUPS)) - part.skipped;
        if (j >= p.parts || at < 0 || at >= elements || rank < 0 || rank >= part.rank || !part.dlora_b)
            continue;
        float sum = 0.0f;
        DT_UNROLL_BY(8)
        for (int range = 0; range < p.ranges; range++)
            sum += part.db[range * elements + at];
        part.dlora_b[at / (8 * GROUPS) * part.dlora_b_pitch + rank] += sum;
    }
}
/* ---------------------------------------------------------------- dA and the adapters' part of dx */

struct linear_stream_params {
    const uint16_t *x, *du;
    uint16_t *dx; /* NULL: not wanted */
    const float *a;
    float *sums, *dlora_a; /* sums: [ranges][8 GROUPS][width]; dlora_a: added to; NULL: not wanted */
    int64_t x_pitch, du_pitch, dx_pitch, a_pitch, dlora_a_pitch, T;
    int32_t R, R_padded, ranges, tiles, sum_ranks; /* sum_ranks: 8 GROUPS */
    float scale;
    linear_mask mask;
};
/* The mask of a tile: 16 bytes a row. Widths of whole tiles come by asynchronous copies. */
DT_DEVICE void linear_fetch_kept(uint32_t to, const linear_mask &m, int64_t t0, int64_t i0, int64_t T)
{
    int row = (int)threadIdx.x / 2, half = (int)threadIdx.x % 2;
    bool inside = t0 + row < T;
    const uint8_t *from = m.kept + (t0 + row) * (m.width / 8) + i0 / 8;
    if (m.width % LINEAR_SIDE == 0) {
        if (half == 0)
            copy_async16(to + (uint32_t)row * 16u, inside ? from : m.kept, inside ? 16 : 0);
        return;
    }
    for (int word = 2 * half; word < 2 * half + 2; word++) {
        uint32_t bits = 0;
        for (int i = 0; i < 4; i++)
            if (inside && i0 / 8 + 4 * word + i < m.width / 8)
                bits |= (uint32_t)from[4 * word + i] << (8 * i);
        store_shared4(to + (uint32_t)(row * 16 + word * 4), bits);
    }
}
/* A of the block's columns as the B fragments that linear_correct wants: [step][32 columns][product][lane]. The columns
 * of four products are dealt so that a thread gets columns 8 q .. 8 q + 7 of its two rows. */
template <int STEPS> DT_DEVICE void linear_store_low(uint32_t to, const linear_stream_params &p, int64_t column0)
{
    for (int k = (int)threadIdx.x; k < STEPS * 512; k += LINEAR_THREADS) {
        int lane = k & 31, product = k >> 5 & 3, group = k >> 7 & 3, step = k >> 9;
        int64_t column = column0 + 32 * group + 8 * (lane / 8) + 2 * product + (lane / 4 & 1);
        DT_UNROLL
        for (int h = 0; h < 2; h++) {
            int r = 16 * step + 8 * h + 2 * (lane & 3);
            const float *from = p.a + r * p.a_pitch + column;
            store_shared4(to + (uint32_t)(k * 8 + h * 4),
                          pack_bf16(column < p.mask.width && r < p.R ? from[0] : 0.0f,
                                    column < p.mask.width && r + 1 < p.R ? from[p.a_pitch] : 0.0f));
        }
    }
}
/* Two steps of the transposed tile, the dropped elements zero. */
DT_DEVICE void linear_load_kept(uint32_t (&a)[2][4], uint32_t tile, uint32_t kept, int s, bool drops)
{
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    DT_UNROLL
    for (int i = 0; i < 2; i++) {
        load_a<MN_MAJOR>(a[i], tile, LINEAR_PANEL_BYTES, 2 * s + i, 16 * warp);
        if (!drops)
            continue;
        DT_UNROLL
        for (int h = 0; h < 2; h++) { /* rows 8 h .. of the step; the warp's columns are half a word */
            uint32_t row =
                kept + (uint32_t)((2 * s + i) * 16 + 8 * h + 2 * (lane & 3)) * 16u + (uint32_t)(warp / 2) * 4u;
            int shift = warp % 2 * 16 + lane / 4;
            uint32_t bits = (load_shared4(row) >> shift & 0x101u) | (load_shared4(row + 16u) >> shift & 0x101u) << 16;
            a[i][2 * h] &= (bits & 0x10001u) * 0xffffu;
            a[i][2 * h + 1] &= (bits >> 8 & 0x10001u) * 0xffffu;
        }
    }
}
/* Sums of dA of the warp's columns. */
template <int GROUPS>
DT_DEVICE void linear_multiply_input(float (&da)[GROUPS][4], uint32_t tile, uint32_t planes, uint32_t kept, bool drops)
{
    DT_UNROLL
    for (int s = 0; s < 4; s++) {
        uint32_t a[2][4], b[4];
        linear_load_kept(a, tile, kept, s, drops);
        DT_UNROLL
        for (int g = 0; g < GROUPS; g++) {
            linear_load_plane(b, planes + (uint32_t)g * LINEAR_PLANE_BYTES, s);
            mma_bf16(da[g], a[0], b[0], b[1]);
            mma_bf16(da[g], a[1], b[2], b[3]);
        }
    }
}
/* The warp's 16 rows of dx: of each 32 columns a thread has eight of two rows. Rows are pointers to the first of these,
 * NULL behind the pack; `left` columns exist from there on. */
struct linear_dx {
    uint4 unit[4][2];
};
DT_DEVICE void linear_load_dx(linear_dx &dx, uint16_t *const (&row)[2], int left)
{
    DT_UNROLL
    for (int k = 0; k < 8; k++)
        dx.unit[k / 2][k & 1] =
            row[k & 1] && k / 2 * 32 < left ? *(const uint4 *)(row[k & 1] + k / 2 * 32) : make_uint4(0, 0, 0, 0);
}
template <int GROUPS, int STEPS>
DT_DEVICE void linear_correct(const linear_dx &dx, uint16_t *const (&to)[2], int left, float scale, uint32_t low,
                              uint32_t planes, uint32_t kept, bool drops)
{
    int lane = (int)threadIdx.x & 31, first = (int)threadIdx.x / 32 * 16;
    uint32_t a[STEPS][4];
    DT_UNROLL
    for (int s = 0; s < STEPS; s++) { /* ranks from R_padded on meet zeros of A, whatever they are */
        int plane = 2 * s + lane / 16 < GROUPS ? 2 * s + lane / 16 : GROUPS - 1;
        ldmatrix(a[s], planes + (uint32_t)(plane * LINEAR_PLANE_BYTES + (first + (lane & 15)) * 16));
    }
    DT_UNROLL
    for (int group = 0; group < 4; group++) {
        float sum[4][4];
        DT_UNROLL
        for (int product = 0; product < 4; product++) {
            mm_clear(sum[product]);
            DT_UNROLL
            for (int s = 0; s < STEPS; s++) {
                uint2 b = load_shared8(low + (uint32_t)(((s * 4 + group) * 4 + product) * 32 + lane) * 8u);
                mma_bf16(sum[product], a[s], b.x, b.y);
            }
        }
        DT_UNROLL
        for (int h = 0; h < 2; h++) {
            uint32_t row = kept + (uint32_t)((first + lane / 4 + 8 * h) * 16 + group * 4),
                     bits = drops ? load_shared4(row) >> (8 * (lane & 3)) : 0xffu;
            float x[8];
            if (!to[h] || 32 * group >= left)
                continue;
            unpack8(x, dx.unit[group][h]);
            DT_UNROLL
            for (int i = 0; i < 8; i++)
                x[i] = bits >> i & 1u ? x[i] + scale * sum[i / 2][2 * h + (i & 1)] : x[i];
            *(uint4 *)(to[h] + 32 * group) = pack8(x);
        }
    }
}
/* 128 columns of x and dx, a range of rows. */
template <int GROUPS>
DT_DEVICE void linear_stream_block(const linear_stream_params &p, int64_t number, const unsigned char *shared)
{
    const int steps = (GROUPS + 1) / 2;
    int64_t column0 = number / p.ranges * LINEAR_SIDE, range = number % p.ranges, row0 = range * p.tiles * LINEAR_SIDE;
    const uint32_t planes_at = LINEAR_BODY_BYTES, kept_at = planes_at + GROUPS * LINEAR_PLANE_BYTES,
                   stage_bytes = kept_at + LINEAR_PLANE_BYTES;
    uint32_t low = shared_address(shared), stage = low + steps * 4096, to = 0, from = 0;
    bool drops = p.mask.threshold != 0;
    int tiles = (int)((p.T - row0 + LINEAR_SIDE - 1) / LINEAR_SIDE);
    tiles = tiles < 0 ? 0 : tiles < p.tiles ? tiles : p.tiles;
    float da[GROUPS][4];
    int fetched = 0, lane = (int)threadIdx.x & 31;
    int64_t i = column0 + 8 * (lane & 3); /* of dx */
    int left = (int)(p.mask.width - i);
    auto fetch = [&]() {
        int64_t t0 = row0 + fetched * LINEAR_SIDE;
        if (fetched < tiles) {
            linear_fetch_body(stage + to, p.x, p.x_pitch, t0, column0, p.T, p.mask.width);
            linear_fetch_planes(stage + to + planes_at, p.du, p.du_pitch, t0, p.T, GROUPS, GROUPS, 0, p.R_padded);
            if (drops)
                linear_fetch_kept(stage + to + kept_at, p.mask, t0, column0, p.T);
        }
        copy_commit();
        fetched++;
        to = stage_bytes - to;
    };
    fetch();
    linear_store_low<steps>(low, p, column0);
    DT_UNROLL
    for (int g = 0; g < GROUPS; g++)
        mm_clear(da[g]);
    for (int tile = 0; tile < tiles; tile++) {
        int64_t t = row0 + tile * LINEAR_SIDE + (int)threadIdx.x / 32 * 16 + lane / 4;
        uint32_t at = stage + from;
        linear_dx dx;
        uint16_t *rows[2] = {p.dx && t < p.T ? p.dx + t * p.dx_pitch + i : NULL,
                             p.dx && t + 8 < p.T ? p.dx + (t + 8) * p.dx_pitch + i : NULL};
        if (p.dx) /* on their way while dA takes the tile */
            linear_load_dx(dx, rows, left);
        copy_wait<0>();
        block_sync();
        fetch();
        linear_multiply_input<GROUPS>(da, at, at + planes_at, at + kept_at, drops);
        if (p.dx)
            linear_correct<GROUPS, steps>(dx, rows, left, p.scale, low, at + planes_at, at + kept_at, drops);
        from = stage_bytes - from;
    }
    int64_t column = column0 + (int)threadIdx.x / 32 * 16 + lane / 4;
    DT_UNROLL
    for (int k = 0; k < 4 * GROUPS; k++) { /* element k: rank k/4 * 8 + k%2, column k/2%2 * 8 */
        int64_t rank = range * (8 * GROUPS) + (k >> 2) * 8 + 2 * (lane & 3) + (k & 1), own = column + (k >> 1 & 1) * 8;
        if (own < p.mask.width)
            p.sums[rank * p.mask.width + own] = da[k >> 2][k & 3];
    }
}
template <int GROUPS> DT_KERNEL(LINEAR_THREADS, 2) linear_input_gradient_kernel(const linear_stream_params p)
{
    DT_SHARED(shared);
    linear_stream_block<GROUPS>(p, (int64_t)blockIdx.x, shared);
}
/* dA from its ranges. k: element */
DT_DEVICE void linear_sum_inputs(const linear_stream_params &p, int64_t k)
{
    int64_t r = k / p.mask.width, i = k % p.mask.width, ranks = p.sum_ranks;
    float sum = 0.0f;
    if (r >= p.R)
        return;
    DT_UNROLL_BY(8)
    for (int range = 0; range < p.ranges; range++)
        sum += p.sums[(range * ranks + r) * p.mask.width + i];
    p.dlora_a[r * p.dlora_a_pitch + i] += p.scale * sum;
}

/* ---------------------------------------------------------------- launches that hold several of these */

/* dU comes out of other products: x and dx in the first `inputs` blocks, dY in the others. */
template <int OUTPUT_GROUPS, int INPUT_GROUPS>
DT_KERNEL(LINEAR_THREADS, 2)
linear_joint_gradient_kernel(const linear_output_params p, const linear_stream_params q, int64_t inputs)
{
    DT_SHARED(shared);
    if ((int64_t)blockIdx.x < inputs)
        linear_stream_block<INPUT_GROUPS>(q, (int64_t)blockIdx.x, shared);
    else
        linear_output_block<OUTPUT_GROUPS, 1>(p, (int64_t)blockIdx.x - inputs, shared);
}
/* The first `low` blocks sum dU, the next `outputs` dB, the others dA. */
template <int GROUPS>
DT_KERNEL(LINEAR_THREADS, 1)
linear_sum_kernel(const linear_output_params p, const linear_stream_params q, int64_t low, int64_t outputs)
{
    int64_t block = (int64_t)blockIdx.x, thread = (int64_t)threadIdx.x;
    if (block < low)
        linear_sum_low<GROUPS>(p, block * LINEAR_THREADS + thread);
    else if (block < low + outputs)
        linear_sum_outputs<GROUPS>(p, (block - low) * LINEAR_THREADS + thread);
    else
        linear_sum_inputs(q, (block - low - outputs) * LINEAR_THREADS + thread);
}
#endif
