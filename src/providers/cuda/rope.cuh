/* Rotary position embedding. The angle is formed in double, in turns, and reduced to one turn before it becomes a
 * float: at position 100,000 an fp32 angle is already wrong by 0.004. Cosines and sines of a token are computed once
 * for several heads.
 *
 * fast kernel: a thread rotates 8 + 8 columns of up to ROPE_HEADS heads, or copies 8 columns of them (which in-place
 * calls skip). plain kernel: a thread for a pair, or for a column that is copied. */
#ifndef DT_CUDA_ROPE_CUH
#define DT_CUDA_ROPE_CUH
#include "providers/cuda/rows.cuh"

enum { ROPE_HEADS = 4, ROPE_MAX_PAIRS = 256 };

struct rope_params {
    rows_view in, out;
    const int32_t *positions;
    int64_t T, T_cap;
    int32_t heads, width, pairs;
    int in_place;                 /* columns that do not rotate are there already, but for rows to be zeroed */
    float direction;              /* 1 forward, -1 backward */
    double turns[ROPE_MAX_PAIRS]; /* of pair i per position: theta^(-2i/rotary_dim) / 2 pi */
};

DT_DEVICE void rope_angle(float &cosine, float &sine, const rope_params &p, int64_t t, int pair)
{
    double turns = (double)p.positions[t] * p.turns[pair];
    sincospif(2.0f * (float)(turns - rint(turns)), &sine, &cosine);
    sine *= p.direction;
}

DT_DEVICE void rope_rotate8(const rope_params &p, int64_t t, int first_head, int column)
{
    float cosine[8], sine[8];
    uint4 low[ROPE_HEADS], high[ROPE_HEADS];
    DT_UNROLL
    for (int i = 0; i < ROPE_HEADS; i++) {
        bool used = t < p.T && first_head + i < p.heads;
        int64_t from = rows_at(p.in, t, first_head + i) + column;
        low[i] = used ? rows_load8(p.in, from) : make_uint4(0, 0, 0, 0);
        high[i] = used ? rows_load8(p.in, from + p.pairs) : make_uint4(0, 0, 0, 0);
    }
    DT_UNROLL
    for (int c = 0; c < 8; c++)
        rope_angle(cosine[c], sine[c], p, t < p.T ? t : 0, column + c);
    DT_UNROLL
    for (int i = 0; i < ROPE_HEADS; i++) {
        float x[8], y[8], first[8], second[8];
        unpack8(x, low[i]);
        unpack8(y, high[i]);
        DT_UNROLL
        for (int c = 0; c < 8; c++) {
            first[c] = x[c] * cosine[c] - y[c] * sine[c];
            second[c] = y[c] * cosine[c] + x[c] * sine[c];
        }
        if (first_head + i < p.heads) {
            int64_t to = rows_at(p.out, t, first_head + i) + column;
            rows_store8(p.out, to, first);
            rows_store8(p.out, to + p.pairs, second);
        }
    }
}
DT_DEVICE void rope_copy8(const rope_params &p, int64_t t, int first_head, int column)
{
    if (t < p.T && p.in_place)
        return;
    uint4 x[ROPE_HEADS];
    DT_UNROLL
    for (int i = 0; i < ROPE_HEADS; i++)
        x[i] = t < p.T && first_head + i < p.heads ? rows_load8(p.in, rows_at(p.in, t, first_head + i) + column)
                                                   : make_uint4(0, 0, 0, 0);
    DT_UNROLL
    for (int i = 0; i < ROPE_HEADS; i++)
        if (first_head + i < p.heads)
            *(uint4 *)((uint16_t *)p.out.data + rows_at(p.out, t, first_head + i) + column) = x[i];
}
/* `items` of a token and group of heads: the rotating vectors, then those to be copied. */
DT_KERNEL(ROWS_THREADS, 1) rope_kernel(DT_GRID_CONSTANT rope_params p, int32_t items)
{
    unsigned groups = (unsigned)(p.heads + ROPE_HEADS - 1) / ROPE_HEADS, count = groups * (unsigned)items;
    unsigned i = blockIdx.x * ROWS_THREADS + threadIdx.x, t = i / count,
             rest = i - t * count; /* 64 bits divide slowly */
    int head = (int)(rest / (unsigned)items) * ROPE_HEADS, item = (int)(rest % (unsigned)items);
    if (t >= p.T_cap)
        return;
    if (item < p.pairs / 8)
        rope_rotate8(p, t, head, item * 8);
    else
        rope_copy8(p, t, head, 2 * p.pairs + (item - p.pairs / 8) * 8);
}

DT_KERNEL(ROWS_THREADS, 1) rope_plain_kernel(DT_GRID_CONSTANT rope_params p)
{
    int items = p.width - p.pairs; /* pairs, then columns that are copied */
    int64_t i = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x, t = i / items / p.heads, h = i / items % p.heads;
    int item = (int)(i % items);
    if (t >= p.T_cap)
        return;
    int64_t in = rows_at(p.in, t, h), out = rows_at(p.out, t, h);
    if (item >= p.pairs) {
        rows_set(p.out, out + p.pairs + item, t < p.T ? rows_get(p.in, in + p.pairs + item) : 0.0f);
        return;
    }
    float cosine = 0.0f, sine = 0.0f, x = 0.0f, y = 0.0f;
    if (t < p.T) {
        rope_angle(cosine, sine, p, t, item);
        x = rows_get(p.in, in + item);
        y = rows_get(p.in, in + p.pairs + item);
    }
    rows_set(p.out, out + item, x * cosine - y * sine);
    rows_set(p.out, out + p.pairs + item, y * cosine + x * sine);
}
#endif
