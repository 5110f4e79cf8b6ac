/* Kernels of the language-model head with cross-entropy. The products (logits, dh, dweight) are cuBLASLt's; here are
 * the list of target rows, their gathering, the loss with its gradient in place over the logits, and the final sums. */
#ifndef DT_CUDA_CROSS_ENTROPY_CUH
#define DT_CUDA_CROSS_ENTROPY_CUH
#include <deltune/op/cross_entropy.h>

#include "providers/cuda/elements.cuh"

enum {
    CROSS_ENTROPY_THREADS = 1024,
    CROSS_ENTROPY_COPY_THREADS = 256,
    CROSS_ENTROPY_HELD = 221184 /* bytes of a row of logits that stay in shared memory between the two passes */
};

struct cross_entropy_params {
    const void *h, *weight;
    void *dh;
    int64_t h_pitch, dh_pitch, T, T_cap, H, V;
    int32_t is_float;
    const int32_t *target;
    const float *row_weight; /* NULL: 1 */
    const dt_step_values *values;
    float grad_scale;
    float *row_loss; /* NULL: not asked for */
    dt_cross_entropy_result *result;
    /* workspace */
    int32_t *count;   /* target rows */
    int32_t *rows;    /* [T_cap] the target rows, ascending */
    int32_t *place;   /* [T_cap] where row t is in `rows`, -1 = no target */
    float *loss;      /* [T_cap] by place */
    int32_t *correct; /* [T_cap] by place */
    void *gathered;   /* [chunk, H] */
    void *logits;     /* [chunk, V_pitch] */
    void *dgathered;  /* [T_cap, H] by place */
    int64_t V_pitch;
    int32_t gradients;
};

DT_DEVICE int cross_entropy_sum_lanes(int x) /* inclusive, over the warp */
{
    int lane = (int)threadIdx.x & 31;
    for (int k = 1; k < 32; k *= 2) {
        int up = shuffle_up_int(x, k);
        x += lane >= k ? up : 0;
    }
    return x;
}
/* One block lists the rows with a target, in order. */
DT_KERNEL(CROSS_ENTROPY_THREADS, 1) cross_entropy_list_kernel(const cross_entropy_params p)
{
    DT_SHARED(shared);
    int *warps = (int *)shared, lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32, before = 0;
    for (int64_t t0 = 0; t0 < p.T_cap; t0 += CROSS_ENTROPY_THREADS) {
        int64_t t = t0 + threadIdx.x;
        bool wanted = t < p.T && p.target[t] >= 0;
        int inclusive = cross_entropy_sum_lanes(wanted), total = 0, mine = 0;
        if (lane == 31)
            warps[warp] = inclusive;
        block_sync();
        for (int w = 0; w < CROSS_ENTROPY_THREADS / 32; w++) {
            mine += w < warp ? warps[w] : 0;
            total += warps[w];
        }
        int place = before + mine + inclusive - 1;
        if (t < p.T_cap) {
            p.place[t] = wanted ? place : -1;
            if (p.row_loss)
                p.row_loss[t] = 0.0f;
        }
        if (wanted)
            p.rows[place] = (int32_t)t;
        before += total;
        block_sync();
    }
    if (threadIdx.x == 0)
        *p.count = before;
}

/* Rows [first, first + rows) of the list into `gathered`; zeros behind its end. */
DT_KERNEL(CROSS_ENTROPY_COPY_THREADS, 1)
cross_entropy_gather_kernel(const cross_entropy_params p, int32_t first, int32_t rows)
{
    int count = *p.count;
    bool units = !p.is_float && p.H % 8 == 0 && p.h_pitch % 8 == 0 && ((uintptr_t)p.h & 15) == 0;
    int64_t per_row = units ? p.H / 8 : p.H;
    for (int64_t k = (int64_t)blockIdx.x * CROSS_ENTROPY_COPY_THREADS + threadIdx.x; k < rows * per_row;
         k += (int64_t)gridDim.x * CROSS_ENTROPY_COPY_THREADS) {
        int64_t row = k / per_row, i = k % per_row;
        int64_t from = first + row < count ? p.rows[first + row] : -1;
        if (units)
            ((uint4 *)p.gathered)[k] =
                from >= 0 ? *(const uint4 *)((const uint16_t *)p.h + from * p.h_pitch + 8 * i) : make_uint4(0, 0, 0, 0);
        else
            store_element(p.gathered, p.is_float, k,
                          from >= 0 ? load_element(p.h, p.is_float, from * p.h_pitch + i) : 0.0f);
    }
}
/* Every row of dh: the target rows' gradients, zeros elsewhere. */
DT_KERNEL(CROSS_ENTROPY_COPY_THREADS, 1) cross_entropy_scatter_kernel(const cross_entropy_params p)
{
    bool units = !p.is_float && p.H % 8 == 0 && p.dh_pitch % 8 == 0 && ((uintptr_t)p.dh & 15) == 0;
    int64_t per_row = units ? p.H / 8 : p.H;
    for (int64_t k = (int64_t)blockIdx.x * CROSS_ENTROPY_COPY_THREADS + threadIdx.x; k < p.T_cap * per_row;
         k += (int64_t)gridDim.x * CROSS_ENTROPY_COPY_THREADS) {
        int64_t t = k / per_row, i = k % per_row, place = p.place[t];
        if (units)
            *(uint4 *)((uint16_t *)p.dh + t * p.dh_pitch + 8 * i) =
                place >= 0 ? *(const uint4 *)((const uint16_t *)p.dgathered + place * p.H + 8 * i)
                           : make_uint4(0, 0, 0, 0);
        else
            store_element(p.dh, p.is_float, t * p.dh_pitch + i,
                          place >= 0 ? load_element(p.dgathered, p.is_float, place * p.H + i) : 0.0f);
    }
}

/* ---------------------------------------------------------------- loss and its gradient */

/* Of some logits: the largest and the lowest index that has it; sum of exp(logit - largest). */
struct cross_entropy_state {
    float largest, sum;
    int32_t best;
};
DT_DEVICE void cross_entropy_merge(cross_entropy_state &a, float largest, float sum, int32_t best)
{
    float top = a.largest > largest ? a.largest : largest;
    if (top > -INFINITY)
        a.sum = a.sum * exp2_fast((a.largest - top) * 1.4426950408889634f) +
                sum * exp2_fast((largest - top) * 1.4426950408889634f);
    a.best = a.largest > largest || (a.largest == largest && a.best < best) ? a.best : best;
    a.largest = top;
}
DT_DEVICE void cross_entropy_take(cross_entropy_state &s, float x, int32_t index)
{
    if (x > s.largest) {
        s.sum *= exp2_fast((s.largest - x) * 1.4426950408889634f);
        s.largest = x;
        s.best = index;
    }
    s.sum += exp2_fast((x - s.largest) * 1.4426950408889634f);
}
/* Eight logits at once: one rescaling of the sum. */
DT_DEVICE void cross_entropy_take8(cross_entropy_state &s, const float (&x)[8], int32_t index)
{
    float top = x[0];
    DT_UNROLL
    for (int k = 1; k < 8; k++)
        top = top > x[k] ? top : x[k];
    if (top > s.largest) {
        s.sum *= exp2_fast((s.largest - top) * 1.4426950408889634f);
        s.largest = top;
        int at = 7;
        DT_UNROLL
        for (int k = 6; k >= 0; k--)
            at = x[k] == top ? k : at;
        s.best = index + at;
    }
    float base = s.largest * 1.4426950408889634f;
    DT_UNROLL
    for (int k = 0; k < 8; k++)
        s.sum += exp2_fast(x[k] * 1.4426950408889634f - base);
}
/* The state of all threads, in every thread; in the order of lanes and warps. */
DT_DEVICE cross_entropy_state cross_entropy_of_block(cross_entropy_state s, float *shared)
{
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    for (int k = 1; k < 32; k *= 2)
        cross_entropy_merge(s, shuffle_xor(s.largest, k), shuffle_xor(s.sum, k), shuffle_xor_int(s.best, k));
    if (lane == 0) {
        shared[3 * warp] = s.largest;
        shared[3 * warp + 1] = s.sum;
        ((int32_t *)shared)[3 * warp + 2] = s.best;
    }
    block_sync();
    cross_entropy_state all = {-INFINITY, 0.0f, 0x7fffffff};
    for (int w = 0; w < CROSS_ENTROPY_THREADS / 32; w++)
        cross_entropy_merge(all, shared[3 * w], shared[3 * w + 1], ((int32_t *)shared)[3 * w + 2]);
    return all;
}

struct cross_entropy_row {  /* what the second pass needs */
    float base, scale, lse; /* base: log-sum-exp in units of log 2 */
    int32_t target;
};
DT_DEVICE float cross_entropy_gradient(const cross_entropy_row &r, float x, int64_t v)
{
    return r.scale * (exp2_fast(x * 1.4426950408889634f - r.base) - (v == r.target ? 1.0f : 0.0f));
}
/* Writes what is known of the row, once; returns what its gradient needs. The target's logit is read before any
 * gradient overwrites it. */
DT_DEVICE cross_entropy_row cross_entropy_finish(const cross_entropy_params &p, int place, const cross_entropy_state &s,
                                                 const void *logits)
{
    int64_t t = p.rows[place];
    cross_entropy_row r;
    r.target = p.target[t];
    r.lse = s.largest + logf(s.sum);
    r.base = r.lse * 1.4426950408889634f;
    r.scale = (p.values ? p.values->grad_scale : p.grad_scale) * (p.row_weight ? p.row_weight[t] : 1.0f);
    if (threadIdx.x == 0) {
        float loss = r.lse - (r.target < p.V ? load_element(logits, p.is_float, r.target) : NAN);
        p.loss[place] = loss;
        p.correct[place] = s.best == r.target;
        if (p.row_loss)
            p.row_loss[t] = loss;
    }
    block_sync();
    return r;
}

/* A unit of eight gradients in place of its logits. */
DT_DEVICE uint4 cross_entropy_gradient8(const cross_entropy_row &r, const uint4 &logits, int unit)
{
    float x[8];
    unpack8(x, logits);
    DT_UNROLL
    for (int i = 0; i < 8; i++)
        x[i] = r.scale * exp2_fast(x[i] * 1.4426950408889634f - r.base);
    if (unit == r.target / 8) {
        DT_UNROLL
        for (int i = 0; i < 8; i++)
            x[i] -= i == r.target % 8 ? r.scale : 0.0f;
    }
    return pack8(x);
}
/* Units a thread has in flight, of each of the two rows. */
enum { CROSS_ENTROPY_AHEAD = 2 };

/* Walks over two rows at once: gradients in place of the logits of `done`, whose state `r` is known, and the state of
 * `next`. NULL: there is no such row. What a thread keeps of a row in shared memory only it reads again. */
DT_DEVICE cross_entropy_state cross_entropy_walk(uint4 *done, const cross_entropy_row &r, const uint4 *next, int units,
                                                 int held, uint32_t keep)
{
    cross_entropy_state s = {-INFINITY, 0.0f, 0x7fffffff};
    for (int u0 = (int)threadIdx.x; u0 < units; u0 += CROSS_ENTROPY_AHEAD * CROSS_ENTROPY_THREADS) {
        uint4 old[CROSS_ENTROPY_AHEAD], v[CROSS_ENTROPY_AHEAD];
        DT_UNROLL
        for (int k = 0; k < CROSS_ENTROPY_AHEAD; k++) {
            int u = u0 + k * CROSS_ENTROPY_THREADS;
            v[k] = next && u < units ? next[u] : make_uint4(0, 0, 0, 0);
            if (done && u >= held && u < units)
                old[k] = done[u];
            else if (done && u < held)
                old[k] = load_shared16(keep + (uint32_t)u * 16u);
            else
                old[k] = make_uint4(0, 0, 0, 0);
        }
        DT_UNROLL
        for (int k = 0; k < CROSS_ENTROPY_AHEAD; k++) {
            int u = u0 + k * CROSS_ENTROPY_THREADS;
            float x[8];
            if (done && u < units)
                store_streaming16(done + u, cross_entropy_gradient8(r, old[k], u));
            if (next && u < held)
                store_shared16(keep + (uint32_t)u * 16u, v[k]);
            unpack8(x, v[k]);
            if (next && u < units)
                cross_entropy_take8(s, x, 8 * u);
        }
    }
    return s;
}
/* Rows of bf16 logits, those of a block gridDim.x apart. While a row's gradient is written the next one is read. The
 * first CROSS_ENTROPY_HELD bytes of a row stay in shared memory in between; the others come again, from the L2 if they
 * are lucky. Rows behind the list become zeros. */
DT_KERNEL(CROSS_ENTROPY_THREADS, 1) cross_entropy_row_kernel(const cross_entropy_params p, int32_t first, int32_t rows)
{
    DT_SHARED(shared);
    int count = *p.count, units = (int)(p.V / 8),
        held = CROSS_ENTROPY_HELD / 16 < units ? CROSS_ENTROPY_HELD / 16 : units;
    uint32_t keep = shared_address(shared) + 1024;
    uint4 *done = NULL;
    cross_entropy_row r = {0.0f, 0.0f, 0.0f, 0};
    for (int row = (int)blockIdx.x; row < rows || done; row += (int)gridDim.x) {
        uint4 *logits = (uint4 *)((uint16_t *)p.logits + (int64_t)row * p.V_pitch);
        bool real = row < rows && first + row < count;
        cross_entropy_state s = cross_entropy_walk(done, r, real ? logits : NULL, units, held, keep);
        done = NULL;
        if (real) {
            s = cross_entropy_of_block(s, (float *)shared);
            r = cross_entropy_finish(p, first + row, s, logits);
            done = p.gradients ? logits : NULL;
        }
        for (int u = (int)threadIdx.x; row < rows && !real && p.gradients && u < units; u += CROSS_ENTROPY_THREADS)
            logits[u] = make_uint4(0, 0, 0, 0);
    }
}
/* The same for any dtype and vocabulary. */
DT_KERNEL(CROSS_ENTROPY_THREADS, 1) cross_entropy_plain_row_kernel(const cross_entropy_params p, int32_t first)
{
    DT_SHARED(shared);
    char *logits = (char *)p.logits + (int64_t)blockIdx.x * p.V_pitch * (p.is_float ? 4 : 2);
    int place = first + (int)blockIdx.x;
    bool real = place < *p.count;
    cross_entropy_state s = {-INFINITY, 0.0f, 0x7fffffff};
    cross_entropy_row r = {0.0f, 0.0f, 0.0f, 0};
    for (int64_t v = threadIdx.x; real && v < p.V; v += CROSS_ENTROPY_THREADS)
        cross_entropy_take(s, load_element(logits, p.is_float, v), (int32_t)v);
    if (real) {
        s = cross_entropy_of_block(s, (float *)shared);
        r = cross_entropy_finish(p, place, s, logits);
    }
    for (int64_t v = threadIdx.x; p.gradients && v < p.V; v += CROSS_ENTROPY_THREADS)
        store_element(logits, p.is_float, v,
                      real ? cross_entropy_gradient(r, load_element(logits, p.is_float, v), v) : 0.0f);
}

/* Sums over the target rows, one block: f64, in an order that depends on their number only. */
DT_KERNEL(CROSS_ENTROPY_THREADS, 1) cross_entropy_sum_kernel(const cross_entropy_params p)
{
    DT_SHARED(shared);
    double *losses = (double *)shared;
    int32_t *corrects = (int32_t *)(losses + CROSS_ENTROPY_THREADS);
    int count = *p.count, me = (int)threadIdx.x, each = (count + CROSS_ENTROPY_THREADS - 1) / CROSS_ENTROPY_THREADS;
    double loss = 0.0;
    int correct = 0;
    for (int i = me * each; i < (me + 1) * each && i < count; i++) {
        loss += (double)p.loss[i] * (p.row_weight ? (double)p.row_weight[p.rows[i]] : 1.0);
        correct += p.correct[i];
    }
    losses[me] = loss;
    corrects[me] = correct;
    for (int n = CROSS_ENTROPY_THREADS / 2; n; n /= 2) { /* neighbours first: consecutive rows */
        block_sync();
        int stride = CROSS_ENTROPY_THREADS / 2 / n;
        if (me < n) {
            losses[2 * stride * me] += losses[2 * stride * me + stride];
            corrects[2 * stride * me] += corrects[2 * stride * me + stride];
        }
    }
    if (me == 0) {
        p.result->loss = losses[0];
        p.result->targets = count;
        p.result->correct = corrects[0];
    }
}
#endif
