/* Gradients of the low-rank adapters where linear_gradient.cuh does not reach: more than 32 ranks on mma.sync, and
 * plain kernels, one thread an output, for everything else.
 *
 *     dx += scale * keep * (dU A)          linear_input_*
 *     dA += scale * dU^T (keep * x)        linear_columns_*, linear_plain_gradient_kernel
 *     dB_j += dY_j^T U_j                   the same */
#ifndef DT_CUDA_LINEAR_WIDE_CUH
#define DT_CUDA_LINEAR_WIDE_CUH
#include "providers/cuda/linear.cuh"

enum {
    LINEAR_WARPS = 8,
    LINEAR_TILE = 64, /* rows and columns of a tile of linear_columns_kernel */
    LINEAR_STAGES = 6 /* tiles in flight there */
};

/* ---------------------------------------------------------------- dx += scale keep (dU A) */

struct linear_input_params {
    linear_rows du, dx;
    const float *a;
    int64_t a_pitch, T;
    int32_t R, row_step; /* rows a block visits, a multiple of 16 */
    float scale;
    linear_mask mask;
};

/* A warp owns 32 columns and visits row_step rows. The columns of the four products are dealt so that a thread
 * holds columns 8 q .. 8 q + 7 of its two rows: one block of the generator and one 16-byte unit each. Four 16-column
 * steps of dU are one panel, whose part of A stays in registers; wider ranks take several panels. */
DT_KERNEL(LINEAR_THREADS, 2) linear_input_kernel(const linear_input_params p)
{
    const int steps = 4;
    int64_t block = (int64_t)blockIdx.x;
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32, q = lane & 3,
        panels = (p.R + 16 * steps - 1) / (16 * steps);
    int64_t groups = (p.mask.width + 32 * LINEAR_WARPS - 1) / (32 * LINEAR_WARPS);
    int64_t i0 = (block % groups * LINEAR_WARPS + warp) * 32, first = block / groups * p.row_step;
    dt_dropout_key key = linear_key(p.mask);
    uint32_t b[steps][4][2];
    for (int64_t t0 = first; t0 < first + p.row_step && t0 < p.T; t0 += 16) {
        float sum[4][4];
        int64_t t = t0 + lane / 4, i = i0 + 8 * q;
        uint4 dx[2];
        uint32_t bits[2];
        DT_UNROLL
        for (int h = 0; h < 2; h++) {
            bool inside = t + 8 * h < p.T && i < p.mask.width;
            dx[h] = inside ? *(const uint4 *)((const uint16_t *)p.dx.data + (t + 8 * h) * p.dx.pitch + i)
                           : make_uint4(0, 0, 0, 0);
            bits[h] = inside ? linear_bits(p.mask, key, t + 8 * h, i) : 0;
        }
        DT_UNROLL
        for (int g = 0; g < 4; g++)
            sum[g][0] = sum[g][1] = sum[g][2] = sum[g][3] = 0.0f;
        for (int panel = 0; panel < panels; panel++) {
            DT_UNROLL
            for (int s = 0; s < steps; s++) {
                int r = panel * 16 * steps + 16 * s + 2 * q;
                if (panels > 1 || t0 == first) {
                    DT_UNROLL
                    for (int g = 0; g < 4; g++) {
                        int64_t column = i0 + 8 * (lane / 8) + 2 * g + (lane / 4 & 1);
                        DT_UNROLL
                        for (int h = 0; h < 2; h++) {
                            const float *from = p.a + (int64_t)(r + 8 * h) * p.a_pitch + column;
                            b[s][g][h] =
                                pack_bf16(column < p.mask.width && r + 8 * h < p.R ? from[0] : 0.0f,
                                          column < p.mask.width && r + 8 * h + 1 < p.R ? from[p.a_pitch] : 0.0f);
                        }
                    }
                }
                uint32_t a[4];
                DT_UNROLL
                for (int k = 0; k < 4; k++) { /* columns from R on hold zeros up to the next multiple of 8 */
                    int64_t row = t + (k & 1) * 8, column = r + (k >> 1) * 8;
                    a[k] = row < p.T && column < p.R
                               ? *(const uint32_t *)((const uint16_t *)p.du.data + row * p.du.pitch + column)
                               : 0u;
                }
                DT_UNROLL
                for (int g = 0; g < 4; g++)
                    mma_bf16(sum[g], a, b[s][g][0], b[s][g][1]);
            }
        }
        DT_UNROLL
        for (int h = 0; h < 2; h++) {
            if (t + 8 * h >= p.T || i >= p.mask.width)
                continue;
            float x[8];
            unpack8(x, dx[h]);
            DT_UNROLL
            for (int g = 0; g < 4; g++) {
                x[2 * g] += bits[h] >> (2 * g) & 1 ? p.scale * sum[g][2 * h] : 0.0f;
                x[2 * g + 1] += bits[h] >> (2 * g + 1) & 1 ? p.scale * sum[g][2 * h + 1] : 0.0f;
            }
            *(uint4 *)((uint16_t *)p.dx.data + (t + 8 * h) * p.dx.pitch + i) = pack8(x);
        }
    }
}
DT_KERNEL(LINEAR_THREADS, 1) linear_plain_input_kernel(const linear_input_params p)
{
    int64_t k = (int64_t)blockIdx.x * LINEAR_THREADS + threadIdx.x, t = k / p.mask.width, i = k % p.mask.width;
    if (t >= p.T || !linear_kept(p.mask, linear_key(p.mask), t, i))
        return;
    float sum = 0.0f;
    for (int r = 0; r < p.R; r++)
        sum += load_element(p.du.data, p.du.is_float, t * p.du.pitch + r) * p.a[r * p.a_pitch + i];
    sum = p.scale * sum + load_element(p.dx.data, p.dx.is_float, t * p.dx.pitch + i);
    store_element(p.dx.data, p.dx.is_float, t * p.dx.pitch + i, sum);
}

/* ---------------------------------------------------------------- dA and dB */

/* One gradient: columns of `rows` against columns [first, first + rank) of `low`. */
struct linear_gradient {
    linear_rows rows;
    int64_t width;
    linear_rows low;   /* U or dU: [T, low_width] */
    int64_t low_width; /* a multiple of 8 */
    float *out;        /* element (column i, rank r) at i * column_stride + r * rank_stride; added to */
    int64_t column_stride, rank_stride;
    int32_t first, rank;
    int32_t period,
        copies; /* low comes in so many parts, `period` columns apart: their sum counts; plain kernels only */
    float scale;
    int32_t masked;     /* rows are the input: the dropout mask applies */
    int64_t first_item; /* blocks before it */
};
struct linear_gradient_params {
    linear_gradient part[LINEAR_PARTS + 1];
    int32_t parts;
    int64_t T;
    linear_mask mask;
};

DT_DEVICE linear_gradient linear_part_of(const linear_gradient_params &p, int64_t item)
{
    linear_gradient found = p.part[0];
    DT_UNROLL
    for (int i = 1; i < LINEAR_PARTS + 1; i++)
        if (i < p.parts && item >= p.part[i].first_item)
            found = p.part[i];
    return found;
}

/* 64 columns of one gradient against a panel of 64 ranks, over all rows in order. Tiles of 64 rows arrive by
 * asynchronous copies, LINEAR_STAGES - 1 ahead. Warp w owns columns 16 (w % 4) .. and of each tile the rows 32 (w / 4)
 * ..; the two halves are added at the end. */
enum { LINEAR_TILE_BYTES = LINEAR_TILE * 128, LINEAR_COLUMNS_BYTES = LINEAR_STAGES * 2 * LINEAR_TILE_BYTES };
struct linear_columns {
    int64_t column0; /* of the gradient's rows tensor */
    int panel;       /* first column of the panel in U or dU */
    int begin, end;  /* groups of 16 columns of the panel that are wanted */
    uint32_t tiles;
};
/* Where a thread stands in its two units (32 rows apart) of both operands of the next tile to fetch. */
struct linear_stream {
    const uint16_t *rows, *low; /* NULL: beyond the columns that are wanted */
    int64_t left;               /* rows from here to the end */
    uint32_t to;                /* in a stage */
    int stage;
};
/* Both operands of the next tile. Always one group of copies. */
DT_DEVICE void linear_fetch(linear_stream &s, const linear_columns &c, const linear_gradient &part)
{
    uint32_t to = c.tiles + (uint32_t)s.stage * 2u * LINEAR_TILE_BYTES + s.to;
    DT_UNROLL
    for (int k = 0; k < 2; k++) { /* rows 32 apart swizzle alike */
        bool there = s.left > 32 * k;
        if (s.rows)
            copy_async16(to + (uint32_t)k * 32u * 128u, there ? s.rows + 32 * k * part.rows.pitch : s.rows,
                         there ? 16 : 0);
        if (s.low)
            copy_async16(to + (uint32_t)k * 32u * 128u + LINEAR_TILE_BYTES,
                         there ? s.low + 32 * k * part.low.pitch : s.low, there ? 16 : 0);
    }
    if (s.rows)
        s.rows += LINEAR_TILE * part.rows.pitch;
    if (s.low)
        s.low += LINEAR_TILE * part.low.pitch;
    s.left -= LINEAR_TILE;
    s.stage = s.stage + 1 < LINEAR_STAGES ? s.stage + 1 : 0;
    copy_commit();
}
/* Zeros in the units that no tile has, once. */
DT_DEVICE void linear_clear(const linear_columns &c, const linear_stream &s)
{
    for (int stage = 0; stage < LINEAR_STAGES; stage++) {
        uint32_t to = c.tiles + (uint32_t)stage * 2u * LINEAR_TILE_BYTES + s.to;
        DT_UNROLL
        for (int k = 0; k < 2; k++) {
            if (!s.rows)
                store_shared16(to + (uint32_t)k * 32u * 128u, make_uint4(0, 0, 0, 0));
            if (!s.low)
                store_shared16(to + (uint32_t)k * 32u * 128u + LINEAR_TILE_BYTES, make_uint4(0, 0, 0, 0));
        }
    }
}
/* The mask of the units this thread fetches of tile `tile`. */
struct linear_drop {
    uint32_t bits[2];
};
DT_DEVICE linear_drop linear_drop_of(const linear_columns &c, const linear_mask &mask, const dt_dropout_key &key,
                                     int64_t tile, int64_t T)
{
    linear_drop d = {{0, 0}};
    DT_UNROLL
    for (int k = 0; k < 2; k++) {
        int index = (int)threadIdx.x + k * LINEAR_THREADS;
        int64_t t = tile * LINEAR_TILE + index / 8, i = c.column0 + index % 8 * 8;
        if (t < T && i < mask.width)
            d.bits[k] = linear_bits(mask, key, t, i);
    }
    return d;
}
DT_DEVICE void linear_apply(const linear_columns &c, const linear_drop &d, int stage)
{
    uint32_t at = c.tiles + (uint32_t)stage * 2u * LINEAR_TILE_BYTES;
    DT_UNROLL
    for (int k = 0; k < 2; k++) {
        int index = (int)threadIdx.x + k * LINEAR_THREADS;
        uint32_t to = tile_unit(at, index / 8, index % 8);
        store_shared16(to, linear_masked(load_shared16(to), d.bits[k]));
    }
}
DT_DEVICE void linear_multiply(float (&sum)[4][8], const linear_columns &c, int stage)
{
    uint32_t rows = c.tiles + (uint32_t)stage * 2u * LINEAR_TILE_BYTES, low = rows + LINEAR_TILE_BYTES;
    int warp = (int)threadIdx.x / 32;
    DT_UNROLL
    for (int s = 0; s < 2; s++) {
        int step = 2 * (warp / 4) + s;
        uint32_t a[4], b[4];
        load_a<MN_MAJOR>(a, rows, LINEAR_TILE_BYTES, step, 16 * (warp % 4));
        DT_UNROLL
        for (int j = 0; j < 4; j++)
            if (j >= c.begin && j < c.end) {
                load_b<MN_MAJOR>(b, low, LINEAR_TILE_BYTES, step, j);
                mma_bf16(sum[j], a, b[0], b[1]);
                mma_bf16(sum[j] + 4, a, b[2], b[3]);
            }
    }
}
/* Adds the two halves of the rows, then their sum to the gradient. all: [64 columns][LINEAR_PITCH] */
enum { LINEAR_PITCH = 66 };
DT_DEVICE void linear_write_columns(const linear_gradient &part, const linear_columns &c, const float (&sum)[4][8],
                                    float *all)
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x & 31,
        at = (16 * (warp % 4) + lane / 4) * LINEAR_PITCH + 2 * (lane & 3);
    for (int half = 1; half >= 0; half--) {
        DT_UNROLL
        for (int k = 0; k < 32; k++) { /* element k: group k/8, half k/4%2, row k/2%2, column k%2 */
            int to = at + (k >> 3) * 16 + (k >> 2 & 1) * 8 + (k >> 1 & 1) * 8 * LINEAR_PITCH + (k & 1);
            if (warp / 4 == half)
                all[to] = half ? sum[k >> 3][k & 7] : all[to] + sum[k >> 3][k & 7];
        }
        block_sync();
    }
    const int each = LINEAR_TILE * 64 / LINEAR_THREADS;
    bool along = part.column_stride == 1; /* columns, else ranks, run along the threads */
    float *to[each], old[each], x[each];
    DT_UNROLL
    for (int i = 0; i < each; i++) {
        int k = (int)threadIdx.x + i * LINEAR_THREADS, column = along ? k % 64 : k / 64, low = along ? k / 64 : k % 64;
        int64_t rank = c.panel + low - part.first;
        bool wanted = rank >= 0 && rank < part.rank && c.column0 + column < part.width;
        to[i] = wanted ? part.out + (c.column0 + column) * part.column_stride + rank * part.rank_stride : NULL;
        old[i] = wanted ? *to[i] : 0.0f;
        x[i] = all[column * LINEAR_PITCH + low];
    }
    DT_UNROLL
    for (int i = 0; i < each; i++)
        if (to[i])
            *to[i] = old[i] + part.scale * x[i];
}
DT_KERNEL(LINEAR_THREADS, 2) linear_columns_kernel(const linear_gradient_params p)
{
    DT_SHARED(shared);
    const linear_gradient part = linear_part_of(p, (int64_t)blockIdx.x);
    dt_dropout_key key = linear_key(p.mask);
    int64_t item = (int64_t)blockIdx.x - part.first_item, tiles = (p.T + LINEAR_TILE - 1) / LINEAR_TILE;
    int panel0 = part.first / 64, panels = (part.first + part.rank - 1) / 64 - panel0 + 1;
    linear_columns c;
    c.column0 = item / panels * LINEAR_TILE;
    c.panel = (panel0 + (int)(item % panels)) * 64;
    c.begin = part.first > c.panel ? (part.first - c.panel) / 16 : 0;
    int last = part.first + part.rank;
    c.end = last < c.panel + 64 ? (last - c.panel + 15) / 16 : 4;
    c.tiles = shared_address(shared);
    float sum[4][8];
    DT_UNROLL
    for (int j = 0; j < 4; j++)
        mm_clear(sum[j]);
    int row = (int)threadIdx.x / 8, unit = (int)threadIdx.x % 8, stage = 0;
    linear_stream stream = {NULL, NULL, p.T - row, tile_unit(0, row, unit), 0};
    if (c.column0 + unit * 8 < part.width)
        stream.rows = (const uint16_t *)part.rows.data + row * part.rows.pitch + c.column0 + unit * 8;
    if (unit >= 2 * c.begin && unit < 2 * c.end && c.panel + unit * 8 < part.low_width)
        stream.low = (const uint16_t *)part.low.data + row * part.low.pitch + c.panel + unit * 8;
    linear_clear(c, stream);
    bool drops = part.masked && p.mask.threshold;
    linear_drop drop = {{0, 0}};
    for (int tile = 0; tile < LINEAR_STAGES - 1; tile++)
        linear_fetch(stream, c, part);
    if (drops)
        drop = linear_drop_of(c, p.mask, key, 0, p.T);
    for (int64_t tile = 0; tile < tiles; tile++) {
        copy_wait<LINEAR_STAGES - 2>();
        if (drops)
            linear_apply(c, drop, stage);
        block_sync();
        linear_fetch(stream, c, part);
        if (drops)
            drop = linear_drop_of(c, p.mask, key, tile + 1, p.T);
        linear_multiply(sum, c, stage);
        stage = stage + 1 < LINEAR_STAGES ? stage + 1 : 0;
    }
    copy_wait<0>();
    block_sync();
    linear_write_columns(part, c, sum, (float *)shared);
}
/* One thread a gradient element; items are counted as LINEAR_THREADS elements. */
DT_KERNEL(LINEAR_THREADS, 1) linear_plain_gradient_kernel(const linear_gradient_params p)
{
    const linear_gradient part = linear_part_of(p, (int64_t)blockIdx.x);
    dt_dropout_key key = linear_key(p.mask);
    int64_t k = ((int64_t)blockIdx.x - part.first_item) * LINEAR_THREADS + threadIdx.x, i = k / part.rank;
    int rank = (int)(k % part.rank);
    float sum = 0.0f;
    if (i >= part.width)
        return;
    for (int64_t t = 0; t < p.T; t++)
        if (!part.masked || linear_kept(p.mask, key, t, i))
            for (int copy = 0; copy < part.copies; copy++)
                sum += load_element(part.rows.data, part.rows.is_float, t * part.rows.pitch + i) *
                       load_element(part.low.data, part.low.is_float,
                                    t * part.low.pitch + part.first + rank + copy * part.period);
    part.out[i * part.column_stride + rank * part.rank_stride] += part.scale * sum;
}
#endif
