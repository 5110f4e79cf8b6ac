/* Kernels of the low-rank adapters (LoRA) of linear maps.
 *
 *     U = scale * (keep * x) A^T           linear_inner_*      keep: the dropout mask; scale holds 1/(1-p)
 *     dx += scale * keep * (dU A)          linear_input_*
 *     dA += scale * dU^T (keep * x)        linear_columns, linear_plain_gradient_kernel
 *     dB_j += dY_j^T U_j                   the same
 *
 * Two families: bf16 ones for rows of whole 16-byte units, on mma.sync; plain ones for everything else (f32, odd
 * widths), one thread an output, written for clarity. Sums run in an order that depends on shapes only. */
#ifndef DT_CUDA_LINEAR_CUH
#define DT_CUDA_LINEAR_CUH
#include <deltune/operators.h>

#include "core/philox.h"
#include "providers/cuda/elements.cuh"
#include "providers/cuda/mm.cuh"

enum {
    LINEAR_THREADS = 256,
    LINEAR_WARPS = 8,
    LINEAR_INNER_THREADS = 512,
    LINEAR_INNER_WARPS = 16,
    LINEAR_TILE = 64,  /* rows and columns of a tile of linear_columns_kernel */
    LINEAR_STAGES = 6, /* tiles in flight there */
    LINEAR_PARTS = 4,
    LINEAR_SHORT = 1024 /* rows of a pack that is bound by launches and latency */
};

struct linear_rows { /* [T, width] activations */
    void *data;
    int64_t pitch;
    int is_float;
};
/* The dropout mask of x. */
struct linear_mask {
    const dt_step_values *values; /* seed, step, micro are read here when given */
    uint64_t seed;
    uint32_t step, micro, input, threshold; /* threshold 0: everything is kept */
    int64_t width;
    uint8_t *kept; /* [T, width / 8] what forward has drawn, a bit an element, for backward; NULL: not kept */
};

DT_DEVICE dt_dropout_key linear_key(const linear_mask &m)
{
    dt_dropout_key key = {m.seed, m.step, m.micro, m.input};
    if (m.values)
        key.seed = m.values->seed, key.step = m.values->step, key.micro = m.values->micro;
    return key;
}
DT_DEVICE bool linear_kept(const linear_mask &m, const dt_dropout_key &key, int64_t t, int64_t i)
{
    uint64_t element = (uint64_t)(t * m.width + i);
    return !m.threshold || (dt_dropout_mask8(key, element / 8, m.threshold) >> (element % 8) & 1);
}
/* The bits of block `block` (eight elements), drawn, and kept when wanted. */
DT_DEVICE uint32_t linear_draw(const linear_mask &m, const dt_dropout_key &key, uint64_t block, bool keep)
{
    uint32_t bits = dt_dropout_mask8(key, block, m.threshold);
    if (keep)
        m.kept[block] = (uint8_t)bits;
    return bits;
}
/* In backward: bits of elements i .. i + 7 of row t; i and the width are multiples of 8. */
DT_DEVICE uint32_t linear_bits(const linear_mask &m, const dt_dropout_key &key, int64_t t, int64_t i)
{
    uint64_t block = (uint64_t)(t * m.width + i) / 8;
    return !m.threshold ? 0xffu : m.kept ? m.kept[block] : dt_dropout_mask8(key, block, m.threshold);
}
/* Two bits to a mask over a pair of bf16. */
DT_DEVICE uint32_t linear_pair(uint32_t bits)
{
    return (bits & 1u ? 0xffffu : 0u) | (bits & 2u ? 0xffff0000u : 0u);
}
DT_DEVICE uint4 linear_masked(const uint4 &x, uint32_t bits)
{
    return make_uint4(x.x & linear_pair(bits), x.y & linear_pair(bits >> 2), x.z & linear_pair(bits >> 4),
                      x.w & linear_pair(bits >> 6));
}

/* ---------------------------------------------------------------- packed B */

/* B_1 .. B_k, f32, as one block-diagonal matrix [out, width] in the dtype of activations: part j's rows hold its B in
 * columns row_j .. and zeros elsewhere; as often as U comes in parts. Its rows lie behind those of the weights, or in
 * the workspace. */
struct linear_pack_params {
    const float *b[LINEAR_PARTS]; /* NULL: no adapter */
    linear_rows out[LINEAR_PARTS];
    int64_t pitch[LINEAR_PARTS], end[LINEAR_PARTS]; /* of b; rows of this and all parts before */
    int32_t row[LINEAR_PARTS], rank[LINEAR_PARTS];
    int32_t parts, width, period, copies; /* copies start `period` columns apart; both multiples of 8 */
};
/* The k-th unit of eight elements of a row. */
DT_DEVICE void linear_pack_unit(const linear_pack_params &p, int64_t k)
{
    int units = p.width / 8, o = (int)k / units, column = (int)k % units * 8, j = 0;
    bool there = column < p.period * p.copies;
    while (j + 1 < p.parts && o >= p.end[j])
        j++;
    if (o >= p.end[j])
        return;
    o -= j ? (int)p.end[j - 1] : 0;
    int r = column % p.period - p.row[j];
    const float *b = p.b[j] + (int64_t)o * p.pitch[j] + r;
    int64_t at = (int64_t)o * p.out[j].pitch + column;
    float x[8];
    DT_UNROLL
    for (int i = 0; i < 8; i++)
        x[i] = there && p.b[j] && r + i >= 0 && r + i < p.rank[j] ? b[i] : 0.0f;
    if (p.out[j].is_float) {
        DT_UNROLL
        for (int i = 0; i < 8; i++)
            ((float *)p.out[j].data)[at + i] = x[i];
    } else
        *(uint4 *)((uint16_t *)p.out[j].data + at) = pack8(x);
}
DT_KERNEL(LINEAR_THREADS, 1) linear_pack_kernel(const linear_pack_params p)
{
    linear_pack_unit(p, (int64_t)blockIdx.x * LINEAR_THREADS + threadIdx.x);
}

/* ---------------------------------------------------------------- U = scale (keep x) A^T */

/* In short packs the width is divided over blocks, too. Their sums are not added: parts of U side by side, each against
 * a copy of B, are added by the product that takes them. */
struct linear_inner_params {
    linear_rows x, u;   /* u: columns R .. R_padded - 1 are written 0; data NULL: not wanted */
    linear_rows behind; /* U once more, behind the rows of x, with zeros up to `extension`; data NULL: not wanted */
    int32_t extension;
    const float *a; /* [R, width], f32, row pitch a_pitch */
    int64_t a_pitch, T;
    int32_t R, R_padded, splits; /* part k of U: columns k * R_padded .. */
    int32_t slabs;               /* of 16 rows a block, 1, 2, 4 or 8: the warps are dealt to them */
    float scale;
    linear_mask mask;
};

/* What a thread brings of one step: 16 bytes of two rows of x, eight elements of a row of A a group. */
template <int GROUPS> struct linear_step {
    uint4 x[2];
    float4 a[GROUPS][2];
};
/* Where a thread stands in its rows of x and A. */
struct linear_inner_place {
    const uint16_t *x;  /* row t; the other row lies eight rows below */
    const float *a;     /* row `row`; the groups' rows lie eight rows apart */
    int left, row;      /* columns from here to the end of the part */
    bool first, second; /* rows t and t + 8 exist */
};
template <int GROUPS>
DT_DEVICE void linear_load_step(linear_step<GROUPS> &s, const linear_inner_params &p, const linear_inner_place &at)
{
    bool inside = at.left > 0;
    s.x[0] = inside && at.first ? *(const uint4 *)at.x : make_uint4(0, 0, 0, 0);
    s.x[1] = inside && at.second ? *(const uint4 *)(at.x + 8 * p.x.pitch) : make_uint4(0, 0, 0, 0);
    DT_UNROLL
    for (int g = 0; g < GROUPS; g++) {
        const float4 *from = (const float4 *)(at.a + 8 * g * p.a_pitch);
        bool there = inside && at.row + 8 * g < p.R;
        s.a[g][0] = there ? from[0] : make_float4(0, 0, 0, 0);
        s.a[g][1] = there ? from[1] : make_float4(0, 0, 0, 0);
    }
}
template <int GROUPS> DT_DEVICE void linear_round_step(uint32_t (&b)[GROUPS][4], const linear_step<GROUPS> &s)
{
    DT_UNROLL
    for (int g = 0; g < GROUPS; g++) {
        const float4 &low = s.a[g][0], &high = s.a[g][1];
        b[g][0] = pack_bf16(low.x, low.y), b[g][1] = pack_bf16(low.z, low.w);
        b[g][2] = pack_bf16(high.x, high.y), b[g][3] = pack_bf16(high.z, high.w);
    }
}
template <int GROUPS>
DT_DEVICE void linear_multiply_step(float (&sum)[GROUPS][4], const uint4 (&x)[2], const uint32_t (&b)[GROUPS][4])
{
    uint32_t first[4] = {x[0].x, x[1].x, x[0].y, x[1].y}, second[4] = {x[0].z, x[1].z, x[0].w, x[1].w};
    DT_UNROLL
    for (int g = 0; g < GROUPS; g++) {
        mma_bf16(sum[g], first, b[g][0], b[g][1]);
        mma_bf16(sum[g], second, b[g][2], b[g][3]);
    }
}
/* Adds the sums of a slab's warps in their order and writes them as part `split` of U. all: [warp][16 rows][column] */
DT_DEVICE void linear_write_inner(const linear_inner_params &p, const float *all, int columns, int64_t t0, int column0,
                                  int split)
{
    int rows = 16 * p.slabs, warps = LINEAR_INNER_WARPS / p.slabs;
    for (int k = (int)threadIdx.x; k < rows * columns; k += LINEAR_INNER_THREADS) {
        float total = 0.0f;
        int64_t t = t0 + k / columns;
        int slab = k / (16 * columns);
        for (int w = 0; w < warps; w++)
            total += all[(slab * warps + w) * 16 * columns + k % (16 * columns)];
        int column = column0 + k % columns;
        uint16_t u = bf16_bits(p.scale * total);
        if (t >= p.T || column >= p.R_padded)
            continue;
        column += split * p.R_padded;
        if (p.u.data)
            ((uint16_t *)p.u.data)[t * p.u.pitch + column] = u;
        if (p.behind.data)
            ((uint16_t *)p.behind.data)[t * p.behind.pitch + column] = u;
    }
    int used = p.splits * p.R_padded, spare = p.behind.data && column0 + split == 0 ? (p.extension - used) / 8 : 0;
    for (int k = (int)threadIdx.x; k < rows * spare; k += LINEAR_INNER_THREADS) {
        int64_t t = t0 + k / spare;
        if (t < p.T)
            *(uint4 *)((uint16_t *)p.behind.data + t * p.behind.pitch + used + k % spare * 8) = make_uint4(0, 0, 0, 0);
    }
}
/* Slabs of 16 rows by 8 * GROUPS columns of a part of U a block. A slab's warps share its width, 32 columns a step; the
 * next step's operands are on their way meanwhile.
 *
 * A thread loads 16 bytes of a row: columns 8 q .. 8 q + 7 of the step, q = lane % 4. As the order of summation is
 * free, its first four elements are used as those that the fragments of one product want, the others as those of a
 * second: no shared memory, and the eight elements of a thread are one block of the generator. */
template <int GROUPS> DT_DEVICE void linear_inner_block(const linear_inner_params &p, int64_t block, float *all)
{
    const int columns = 8 * GROUPS;
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32, panels = (p.R_padded + columns - 1) / columns;
    int split = (int)(block / panels % p.splits), width = (int)p.mask.width,
        share = (width / 8 + 4 * p.splits - 1) / (4 * p.splits) * 32, from = split * share,
        to = from + share < width ? from + share : width;
    int warps = LINEAR_INNER_WARPS / p.slabs, stride = warps * 32, first = from + warp % warps * 32;
    int64_t t0 = block / panels / p.splits * 16 * p.slabs, t = t0 + warp / warps * 16 + lane / 4;
    int column0 = (int)(block % panels) * columns, row = column0 + lane / 4, i = first + 8 * (lane & 3);
    linear_inner_place at = {(const uint16_t *)p.x.data + t * p.x.pitch + i,
                             p.a + (int64_t)row * p.a_pitch + i,
                             to - i,
                             row,
                             t < p.T,
                             t + 8 < p.T};
    uint64_t drawn = (uint64_t)(t * p.mask.width + i) / 8;
    bool keep = p.mask.kept && column0 == 0;
    float sum[GROUPS][4];
    linear_step<GROUPS> step;
    dt_dropout_key key = linear_key(p.mask);
    DT_UNROLL
    for (int g = 0; g < GROUPS; g++)
        sum[g][0] = sum[g][1] = sum[g][2] = sum[g][3] = 0.0f;
    linear_load_step(step, p, at);
    for (int done = first; done < to; done += stride, drawn += (unsigned)stride / 8) {
        uint32_t b[GROUPS][4];
        uint4 x[2] = {step.x[0], step.x[1]};
        bool inside = at.left > 0;
        linear_round_step(b, step);
        at.x += stride, at.a += stride, at.left -= stride;
        linear_load_step(step, p, at);
        if (p.mask.threshold && inside) {
            x[0] = linear_masked(x[0], at.first ? linear_draw(p.mask, key, drawn, keep) : 0);
            x[1] = linear_masked(x[1], at.second ? linear_draw(p.mask, key, drawn + (uint64_t)p.mask.width, keep) : 0);
        }
        linear_multiply_step(sum, x, b);
    }
    DT_UNROLL
    for (int g = 0; g < GROUPS; g++) {
        float *mine = all + (warp * 16 + lane / 4) * columns + 8 * g + 2 * (lane & 3);
        mine[0] = sum[g][0], mine[1] = sum[g][1];
        mine[8 * columns] = sum[g][2], mine[8 * columns + 1] = sum[g][3];
    }
    block_sync();
    linear_write_inner(p, all, columns, t0, column0, split);
}
/* The first `inner_blocks` blocks compute U, the others pack B meanwhile. */
template <int GROUPS>
DT_KERNEL(LINEAR_INNER_THREADS, 1)
linear_inner_kernel(const linear_inner_params p, const linear_pack_params pack, int64_t inner_blocks)
{
    DT_SHARED(shared);
    if ((int64_t)blockIdx.x < inner_blocks)
        linear_inner_block<GROUPS>(p, (int64_t)blockIdx.x, (float *)shared);
    else
        linear_pack_unit(pack, ((int64_t)blockIdx.x - inner_blocks) * LINEAR_INNER_THREADS + threadIdx.x);
}
DT_KERNEL(LINEAR_THREADS, 1) linear_plain_inner_kernel(const linear_inner_params p)
{
    int64_t k = (int64_t)blockIdx.x * LINEAR_THREADS + threadIdx.x, t = k / p.R_padded, r = k % p.R_padded;
    if (t >= p.T)
        return;
    dt_dropout_key key = linear_key(p.mask);
    float sum = 0.0f;
    for (int64_t i = 0; r < p.R && i < p.mask.width; i++)
        if (linear_kept(p.mask, key, t, i))
            sum += load_element(p.x.data, p.x.is_float, t * p.x.pitch + i) * p.a[r * p.a_pitch + i];
    store_element(p.u.data, p.u.is_float, t * p.u.pitch + r, p.scale * sum);
}

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
 * holds columns 8 q .. 8 q + 7 of its two rows: one block of the generator and one 16-byte unit each. STEPS 16-column
 * steps of dU are one panel, whose part of A stays in registers; wider ranks take several panels. */
template <int STEPS> DT_DEVICE void linear_input_block(const linear_input_params &p, int64_t block)
{
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32, q = lane & 3,
        panels = (p.R + 16 * STEPS - 1) / (16 * STEPS);
    int64_t groups = (p.mask.width + 32 * LINEAR_WARPS - 1) / (32 * LINEAR_WARPS);
    int64_t i0 = (block % groups * LINEAR_WARPS + warp) * 32, first = block / groups * p.row_step;
    dt_dropout_key key = linear_key(p.mask);
    uint32_t b[STEPS][4][2];
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
            for (int s = 0; s < STEPS; s++) {
                int r = panel * 16 * STEPS + 16 * s + 2 * q;
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
    int32_t period, copies; /* low comes in so many parts, `period` columns apart: their sum counts */
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
/* Adds the two halves of the rows, then the copies of each rank, to the gradient. all: [64 columns][LINEAR_PITCH] */
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
        x[i] = 0.0f;
        for (int copy = 0; wanted && copy < part.copies; copy++)
            x[i] += all[column * LINEAR_PITCH + low + copy * part.period];
    }
    DT_UNROLL
    for (int i = 0; i < each; i++)
        if (to[i])
            *to[i] = old[i] + part.scale * x[i];
}
DT_DEVICE void linear_columns_block(const linear_gradient_params &p, unsigned char *shared)
{
    const linear_gradient part = linear_part_of(p, (int64_t)blockIdx.x);
    dt_dropout_key key = linear_key(p.mask);
    int64_t item = (int64_t)blockIdx.x - part.first_item, tiles = (p.T + LINEAR_TILE - 1) / LINEAR_TILE;
    int panel0 = part.first / 64, panels = (part.first + part.rank - 1) / 64 - panel0 + 1;
    linear_columns c;
    c.column0 = item / panels * LINEAR_TILE;
    c.panel = (panel0 + (int)(item % panels)) * 64;
    c.begin = part.first > c.panel ? (part.first - c.panel) / 16 : 0;
    int last = part.first + part.rank + (part.copies - 1) * part.period;
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
DT_KERNEL(LINEAR_THREADS, 2) linear_columns_kernel(const linear_gradient_params p)
{
    DT_SHARED(shared);
    linear_columns_block(p, shared);
}
template <int STEPS> DT_KERNEL(LINEAR_THREADS, STEPS <= 2 ? 3 : 2) linear_input_kernel(const linear_input_params p)
{
    linear_input_block<STEPS>(p, (int64_t)blockIdx.x);
}
/* Both in one launch, for short packs: the first `items` blocks compute dA and dB, the others correct dx meanwhile. */
template <int STEPS>
DT_KERNEL(LINEAR_THREADS, 2)
linear_backward_kernel(const linear_gradient_params p, const linear_input_params input, int64_t items)
{
    DT_SHARED(shared);
    if ((int64_t)blockIdx.x < items)
        linear_columns_block(p, shared);
    else
        linear_input_block<STEPS>(input, (int64_t)blockIdx.x - items);
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
            sum += load_element(part.rows.data, part.rows.is_float, t * part.rows.pitch + i) *
                   load_element(part.low.data, part.low.is_float, t * part.low.pitch + part.first + rank);
    part.out[i * part.column_stride + rank * part.rank_stride] += part.scale * sum;
}

/* ---------------------------------------------------------------- rows behind the pack */

DT_KERNEL(LINEAR_THREADS, 1) linear_zero_kernel(const linear_rows to, int64_t first, int64_t rows, int64_t width)
{
    int64_t k = (int64_t)blockIdx.x * LINEAR_THREADS + threadIdx.x;
    if (k < rows * width)
        store_element(to.data, to.is_float, (first + k / width) * to.pitch + k % width, 0.0f);
}
#endif
