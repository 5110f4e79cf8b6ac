/* Depthwise causal convolution inside each sample. Contract: deltune/op/causal_conv1d.h; formulas: operators
 * description, section 2.
 *
 * The tensor is cut into fixed blocks of rows and channels. A few rows at a time are computed, vectorised over
 * channels; their inputs are still in cache when they serve as history of the next rows. Blocks are a page wide: what
 * limits narrower ones is not arithmetic but starting a new stream of memory accesses in every row. Backward sums the
 * weight gradient per block of rows, then over these blocks in order, so that the result does not depend on the
 * threads. */
#include <deltune/op/causal_conv1d.h>

#include "providers/cpu/common.h"
#include "providers/cpu/mixer.h"

enum { ROWS = 128, CHANNELS = 1024 };

/* Weights of all channels, the way the kernels read them, at the start of the workspace. */
typedef struct {
    const dt_causal_conv1d_args *a;
    int64_t C, W;
    float *weight;  /* [W,C] */
    float *bias;    /* [C], 0 when there is none */
    float *partial; /* [row blocks,W+1,C] gradients of weight and bias (backward) */
} plan;

/* One block of channels while it walks over rows of samples. */
typedef struct {
    const plan *p;
    const dt_mixer_kernels *kernels;
    int64_t c, n;                           /* first channel, number of channels */
    int64_t sample, begin, end;             /* the sample walked over, and its rows */
    float before[CONV_MAX_WIDTH][CHANNELS]; /* inputs before the sample, oldest first: its initial state, or 0 */
} walk;

static int64_t row_blocks(int64_t T)
{
    return (T + ROWS - 1) / ROWS;
}

static int64_t channel_blocks(int64_t C)
{
    return (C + CHANNELS - 1) / CHANNELS;
}

static size_t workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)exec;
    const dt_causal_conv1d_args *a = args;
    int64_t C = a->x.shape[1], W = a->weight.shape[1];
    int64_t rows = W + 1 + (backward ? row_blocks(a->seqs.T_cap) * (W + 1) : 0);
    return (size_t)(rows * C) * sizeof(float);
}

static plan make_plan(const dt_causal_conv1d_args *a, void *workspace)
{
    plan p = {.a = a, .C = a->x.shape[1], .W = a->weight.shape[1], .weight = workspace};
    p.bias = p.weight + p.W * p.C;
    p.partial = p.bias + p.C;
    for (int64_t c = 0; c < p.C; c++)
        for (int64_t j = 0; j < p.W; j++) {
            int64_t at = c * a->weight.stride[0] + j;
            p.weight[j * p.C + c] = a->weight.dtype == DT_BF16 ? dt_bf16_to_f32(((const uint16_t *)a->weight.data)[at])
                                                               : ((const float *)a->weight.data)[at];
        }
    if (dt_tensor_present(&a->bias))
        dtp_weight_f32(p.bias, &a->bias, p.C, 0.0f);
    else
        memset(p.bias, 0, (size_t)p.C * sizeof(float));
    return p;
}

/* State element [sample,channel,slot]. */
static float *state_at(const dt_tensor *state, int64_t sample, int64_t c, int64_t slot)
{
    return (float *)state->data + sample * state->stride[0] + c * state->stride[1] + slot;
}

static void start_walk(walk *w, const plan *p, int64_t channel_block)
{
    w->p = p;
    w->kernels = dtp_mixer_kernels();
    w->c = channel_block * CHANNELS;
    w->n = p->C - w->c < CHANNELS ? p->C - w->c : CHANNELS;
    w->sample = -1;
    memset(w->before, 0, sizeof w->before);
}

static void enter_sample(walk *w, int64_t sample)
{
    const dt_causal_conv1d_args *a = w->p->a;
    w->sample = sample;
    w->begin = a->seqs.cu_seqlens[sample];
    w->end = a->seqs.cu_seqlens[sample + 1];
    for (int64_t slot = 0; slot < w->p->W && dt_tensor_present(&a->initial_state); slot++)
        for (int64_t c = 0; c < w->n; c++)
            w->before[slot][c] = *state_at(&a->initial_state, sample, w->c + c, slot);
}

/* Rows t..t+rows-1 of the current sample. */
static dt_conv_rows rows_at(const walk *w, int64_t t, int64_t rows)
{
    const plan *p = w->p;
    dt_conv_rows c = {.weight = p->weight + w->c,
                      .ld_weight = p->C,
                      .bias = p->bias + w->c,
                      .width = (int)p->W,
                      .rows = (int)rows,
                      .silu = p->a->silu,
                      .n = w->n};
    for (int64_t i = 0; i < p->W - 1 + rows; i++) {
        int64_t at = t - (p->W - 1) + i;
        c.in[i] = at >= w->begin ? dtp_row(&p->a->x, at) + w->c : w->before[p->W + at - w->begin];
    }
    return c;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The sample that row t belongs to. */
static int64_t sample_of(const dt_seqs *seqs, int64_t t)
{
    int64_t low = 0, high = seqs->n_seq; /* cu[low] <= t < cu[high] */
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        *(seqs->cu_seqlens[middle] <= t ? &low : &high) = middle;
    }
    return low;
}

/* ---- forward ---- */

static void forward_block(const plan *p, int64_t row_block, int64_t channel_block)
{
    const dt_causal_conv1d_args *a = p->a;
    int64_t first = row_block * ROWS, last = first + ROWS < a->seqs.T ? first + ROWS : a->seqs.T;
    walk w;
    start_walk(&w, p, channel_block);
    for (int64_t t = first; t < last;) {
        if (w.sample < 0 || t >= w.end)
            enter_sample(&w, sample_of(&a->seqs, t));
        int64_t rows = least(CONV_MAX_ROWS, least(last, w.end) - t);
        dt_conv_rows c = rows_at(&w, t, rows);
        w.kernels->conv(&c, dtp_row(&a->y, t) + w.c, a->y.stride[0]);
        t += rows;
    }
}

/* The last W inputs of a sample, the initial state moving up when it is shorter. */
static void store_final_state(const plan *p, int64_t sample)
{
    const dt_causal_conv1d_args *a = p->a;
    int64_t begin = a->seqs.cu_seqlens[sample], end = a->seqs.cu_seqlens[sample + 1];
    for (int64_t c = 0; c < p->C; c++)
        for (int64_t slot = 0; slot < p->W; slot++) {
            int64_t t = end - p->W + slot;
            float value = 0.0f;
            if (t >= begin)
                value = dtp_row(&a->x, t)[c];
            else if (dt_tensor_present(&a->initial_state))
                value = *state_at(&a->initial_state, sample, c, p->W + t - begin);
            *state_at(&a->final_state, sample, c, slot) = value;
        }
}

static dt_status conv_forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)err;
    const dt_causal_conv1d_args *a = args;
    plan p = make_plan(a, workspace);
    int64_t wide = channel_blocks(p.C), items = row_blocks(a->seqs.T) * wide;
#pragma omp parallel for schedule(dynamic) num_threads(dtp_threads_for(exec, a->seqs.T *p.C))
    for (int64_t item = 0; item < items; item++)
        forward_block(&p, item / wide, item % wide);
    if (dt_tensor_present(&a->final_state))
        for (int64_t n = 0; n < a->seqs.n_seq; n++)
            store_final_state(&p, n);
    dtp_zero_rows(&a->y, a->seqs.T, a->seqs.T_cap);
    return DT_OK;
}

/* ---- backward ---- */

/* The final state keeps the last W rows: its gradient reaches them directly. */
static void add_final_state_gradient(const walk *w, int64_t t, int64_t rows)
{
    const dt_causal_conv1d_args *a = w->p->a;
    for (int64_t r = 0; r < rows && dt_tensor_present(&a->dfinal_state); r++) {
        int64_t slot = t + r - w->end + w->p->W;
        for (int64_t c = 0; slot >= 0 && c < w->n; c++)
            dtp_row(&a->dx, t + r)[w->c + c] += *state_at(&a->dfinal_state, w->sample, w->c + c, slot);
    }
}

/* Rows first..last-1 of the current sample, from the back: dx of a row needs dp of the W-1 rows behind it, also of
 * those that belong to the next block (computed twice) but never of the next sample. */
static void backward_rows(walk *w, int64_t first, int64_t last, float *partial)
{
    const plan *p = w->p;
    const dt_causal_conv1d_args *a = p->a;
    float later[CONV_MAX_WIDTH][CHANNELS];
    for (int64_t i = 0; i < p->W - 1; i++) {
        memset(later[i], 0, (size_t)w->n * sizeof(float));
        if (last + i >= w->end)
            continue;
        dt_conv_rows c = rows_at(w, last + i, 1);
        w->kernels->conv_gradient(&c, later[i], CHANNELS, dtp_row(&a->dy, last + i) + w->c, a->dy.stride[0]);
    }
    for (int64_t end = last; end > first;) {
        int64_t rows = least(CONV_MAX_ROWS, end - first), t = end - rows;
        dt_conv_rows c = rows_at(w, t, rows);
        w->kernels->conv_backward(&c, dtp_row(&a->dx, t) + w->c, a->dx.stride[0], dtp_row(&a->dy, t) + w->c,
                                  a->dy.stride[0], later[0], CHANNELS, partial + w->c, p->C,
                                  partial + p->W * p->C + w->c);
        add_final_state_gradient(w, t, rows);
        end = t;
    }
}

static void backward_block(const plan *p, int64_t row_block, int64_t channel_block)
{
    const dt_causal_conv1d_args *a = p->a;
    int64_t first = row_block * ROWS, last = first + ROWS < a->seqs.T ? first + ROWS : a->seqs.T;
    float *partial = p->partial + row_block * (p->W + 1) * p->C;
    walk w;
    start_walk(&w, p, channel_block);
    for (int64_t j = 0; j <= p->W; j++)
        memset(partial + j * p->C + w.c, 0, (size_t)w.n * sizeof(float));
    for (int64_t t = first; t < last;) {
        enter_sample(&w, sample_of(&a->seqs, t));
        int64_t end = least(w.end, last);
        backward_rows(&w, t, end, partial);
        t = end;
    }
}

/* Slot s of the initial state is seen by rows 0..s-1 (tap s-1-t of row t), and moves to slot s-L of the final state. */
static void backward_initial_state(const plan *p, int64_t sample, int64_t channel_block)
{
    const dt_causal_conv1d_args *a = p->a;
    float dp[CONV_MAX_WIDTH][CHANNELS];
    walk w;
    start_walk(&w, p, channel_block);
    enter_sample(&w, sample);
    int64_t length = w.end - w.begin;
    for (int64_t t = 0; t < length && t < p->W - 1; t++) {
        dt_conv_rows rows = rows_at(&w, w.begin + t, 1);
        w.kernels->conv_gradient(&rows, dp[t], CHANNELS, dtp_row(&a->dy, w.begin + t) + w.c, a->dy.stride[0]);
    }
    for (int64_t c = 0; c < w.n; c++)
        for (int64_t slot = 0; slot < p->W; slot++) {
            float d = 0.0f;
            if (slot >= length && dt_tensor_present(&a->dfinal_state))
                d = *state_at(&a->dfinal_state, sample, w.c + c, slot - length);
            for (int64_t t = 0; t < length && t < slot; t++)
                d += dp[t][c] * p->weight[(slot - 1 - t) * p->C + w.c + c];
            *state_at(&a->dinitial_state, sample, w.c + c, slot) = d;
        }
}

/* gradient[c * stride] += sum over row blocks of their row j. */
static void add_partials(const plan *p, int64_t j, float *gradient, int64_t stride)
{
    for (int64_t c = 0; c < p->C; c++) {
        double sum = gradient[c * stride];
        for (int64_t b = 0; b < row_blocks(p->a->seqs.T); b++)
            sum += (double)p->partial[(b * (p->W + 1) + j) * p->C + c];
        gradient[c * stride] = (float)sum;
    }
}

static dt_status conv_backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)err;
    const dt_causal_conv1d_args *a = args;
    plan p = make_plan(a, workspace);
    int64_t wide = channel_blocks(p.C), items = row_blocks(a->seqs.T) * wide;
    int threads = dtp_threads_for(exec, a->seqs.T * p.C);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t item = 0; item < items; item++)
        backward_block(&p, item / wide, item % wide);
    if (dt_tensor_present(&a->dinitial_state)) {
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t item = 0; item < a->seqs.n_seq * wide; item++)
            backward_initial_state(&p, item / wide, item % wide);
    }
    for (int64_t j = 0; j < p.W && dt_tensor_present(&a->dweight); j++)
        add_partials(&p, j, (float *)a->dweight.data + j, a->dweight.stride[0]);
    if (dt_tensor_present(&a->dbias))
        add_partials(&p, p.W, a->dbias.data, 1);
    dtp_zero_rows(&a->dx, a->seqs.T, a->seqs.T_cap);
    return DT_OK;
}

static int conv_verify(const dt_exec *exec, const void *args, char *why, size_t why_size)
{
    (void)exec;
    const dt_causal_conv1d_args *a = args;
    return dtp_is_f32(&a->x, "x", why, why_size);
}

const dt_op_set dtp_cpu_causal_conv1d = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_CAUSAL_CONV1D,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_STATE | DT_CAP_DETERMINISTIC,
    .verify = conv_verify,
    .workspace_bytes = workspace_bytes,
    .forward = conv_forward,
    .backward = conv_backward,
};
