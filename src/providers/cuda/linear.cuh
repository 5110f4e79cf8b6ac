/* Kernels of the low-rank adapters (LoRA) of linear maps: the dropout mask, packed B, and
 *
 *     U = scale * (keep * x) A^T           keep: the mask; scale holds 1/(1-p)
 *
 * Their gradients: linear_gradient.cuh, linear_wide.cuh. Two families: bf16 ones for rows of whole 16-byte units, on
 * mma.sync; plain ones for everything else (f32, odd widths), one thread an output, written for clarity. Sums run in an
 * order that depends on shapes only. */
#ifndef DT_CUDA_LINEAR_CUH
#define DT_CUDA_LINEAR_CUH
#include <deltune/operators.h>

#include "core/philox.h"
#include "providers/cuda/elements.cuh"
#include "providers/cuda/mm.cuh"

enum {
    LINEAR_THREADS = 256,
    LINEAR_INNER_THREADS = 512,
    LINEAR_INNER_WARPS = 16,
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

/* ---------------------------------------------------------------- rows behind the pack */

DT_KERNEL(LINEAR_THREADS, 1) linear_zero_kernel(const linear_rows to, int64_t first, int64_t rows, int64_t width)
{
    int64_t k = (int64_t)blockIdx.x * LINEAR_THREADS + threadIdx.x;
    if (k < rows * width)
        store_element(to.data, to.is_float, (first + k / width) * to.pitch + k % width, 0.0f);
}
#endif
