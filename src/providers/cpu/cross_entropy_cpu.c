/* Blocks of target rows against the whole vocabulary. The exponentials of one block of rows live in a bounded
 * workspace, so that each logit and each exponential is computed once. Parallel over blocks of the vocabulary; the
 * gradient of the hidden rows is summed per fixed slice of the vocabulary, then over the slices in order. */
#include "providers/cpu/common.h"
#include "providers/cpu/gemm.h"
#include "providers/step_values.h"
#include <omp.h>

enum {
    VOCABULARY_BLOCK = 512,        /* logits a thread computes and reduces while they are in its cache */
    PITCH = VOCABULARY_BLOCK + 16, /* not a power of two: rows fall into different cache sets */
    LOGIT_BYTES = 128 << 20,       /* one block of rows x vocabulary; with 64 MiB the loss is 10-14% slower */
    SLICE_BYTES = 32 << 20,        /* partial gradients of the hidden rows */
    MIN_ROWS = 32,
    MAX_ROWS = 512,
    MAX_SLICES = 32
};

/* Extents of one call; they depend on shapes only. */
typedef struct layout {
    int64_t rows, H, V;     /* rows of a block */
    int64_t blocks, slices; /* blocks of the vocabulary; slices of blocks */
} layout;

typedef struct buffers {
    int32_t *index;          /* [T_cap] rows that have a target */
    float *h;                /* [rows,H] */
    float *logits;           /* [blocks,rows,PITCH]; soon exp(logit - maximum of the block), then gradients */
    float *maxima, *sums;    /* [blocks,rows] of each block of the vocabulary */
    float *maximum, *factor; /* [rows] of the whole row: a gradient is exp(logit - maximum) * factor */
    float *target_logit;     /* [rows] */
    bool *leads;             /* [rows]: the target is the first maximum of its block */
    float *partial;          /* [slices,rows,H] */
    char *scratch;
} buffers;

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

static layout layout_of(const dt_cross_entropy_args *a)
{
    layout l = {.H = a->h.shape[1], .V = a->weight.shape[0]};
    int64_t T = a->h.shape[0] > 0 ? a->h.shape[0] : 1;
    l.blocks = (l.V + VOCABULARY_BLOCK - 1) / VOCABULARY_BLOCK;
    l.rows = clamp(LOGIT_BYTES / (int64_t)sizeof(float) / (PITCH * (l.blocks ? l.blocks : 1)), MIN_ROWS, MAX_ROWS);
    /* By the model's shape alone, so that the sums of a row do not depend on how many rows there are. */
    int64_t slice = l.rows * l.H * (int64_t)sizeof(float);
    l.slices = clamp(SLICE_BYTES / (slice ? slice : 1), 2, MAX_SLICES);
    if (l.slices > l.blocks)
        l.slices = l.blocks;
    if (l.rows > T)
        l.rows = T;
    return l;
}

/* Hands out 64-byte aligned pieces of one memory; with memory NULL it only counts. */
static void *take(char *memory, size_t *used, size_t bytes)
{
    void *piece = memory ? memory + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return piece;
}

static size_t place(const dt_exec *exec, const dt_cross_entropy_args *a, const layout *l, char *memory, buffers *b)
{
    size_t used = 0, rows = (size_t)l->rows, H = (size_t)l->H, f = sizeof(float);
    b->index = take(memory, &used, sizeof(int32_t) * (size_t)a->h.shape[0]);
    b->h = take(memory, &used, f * rows * H);
    b->logits = take(memory, &used, f * rows * PITCH * (size_t)l->blocks);
    b->maxima = take(memory, &used, f * rows * (size_t)l->blocks);
    b->sums = take(memory, &used, f * rows * (size_t)l->blocks);
    b->maximum = take(memory, &used, f * rows);
    b->factor = take(memory, &used, f * rows);
    b->target_logit = take(memory, &used, f * rows);
    b->leads = take(memory, &used, sizeof(bool) * rows);
    b->partial = take(memory, &used, f * rows * H * (size_t)l->slices);
    b->scratch = take(memory, &used, dtp_gemm_scratch_bytes() * (size_t)exec->threads);
    return used;
}

static size_t workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    (void)backward;
    layout l = layout_of(args);
    buffers b;
    return place(exec, args, &l, NULL, &b);
}

static int verify(const dt_exec *exec, const void *args, char *why, size_t why_size)
{
    (void)exec;
    const dt_cross_entropy_args *a = args;
    return dtp_is_f32(&a->h, "h", why, why_size) && dtp_is_f32(&a->dh, "dh", why, why_size);
}

/* One call in progress: rows first .. first+n of the index. */
typedef struct block {
    const dt_cross_entropy_args *a;
    layout l;
    buffers b;
    int64_t first, n;
} block;

static void *thread_scratch(const block *k)
{
    return k->b.scratch + (size_t)omp_get_thread_num() * dtp_gemm_scratch_bytes();
}

static int64_t block_width(const block *k, int64_t i)
{
    int64_t left = k->l.V - i * VOCABULARY_BLOCK;
    return left < VOCABULARY_BLOCK ? left : VOCABULARY_BLOCK;
}

static dt_operand weight_block(const block *k, int64_t i, dt_transpose trans)
{
    dt_tensor part = dt_tensor_slice(k->a->weight, 0, i * VOCABULARY_BLOCK, i * VOCABULARY_BLOCK + block_width(k, i));
    return dtp_operand(&part, trans);
}

static float *block_logits(const block *k, int64_t i)
{
    return k->b.logits + i * k->l.rows * PITCH;
}

static int64_t row_target(const block *k, int64_t r)
{
    return ((const int32_t *)k->a->target.data)[k->b.index[k->first + r]];
}

static float row_weight(const block *k, int64_t r)
{
    const dt_tensor *weights = &k->a->row_weight;
    return dt_tensor_present(weights) ? ((const float *)weights->data)[k->b.index[k->first + r]] : 1.0f;
}

/* What only the block with the target knows, before its logits become exponentials. */
static void note_target(const block *k, int64_t r, const float *logits, int64_t target, float maximum)
{
    bool leads = logits[target] >= maximum; /* false for NaN */
    for (int64_t v = 0; leads && v < target; v++)
        leads = !(logits[v] >= maximum);
    k->b.target_logit[r] = logits[target];
    k->b.leads[r] = leads;
}

/* Logits of one block of the vocabulary, then exp(logit - maximum) with the maximum and the sum of each row. */
static void forward_block(const block *k, int64_t i)
{
    const dt_row_kernels *kernels = dtp_row_kernels();
    int64_t width = block_width(k, i), begin = i * VOCABULARY_BLOCK;
    dt_gemm product = {.m = k->n,
                       .n = width,
                       .n_products = 1,
                       .product = {{k->l.H, 1, dtp_operand_f32(k->b.h, k->l.H, DTP_N), weight_block(k, i, DTP_T)}},
                       .c = block_logits(k, i),
                       .ldc = PITCH};
    dtp_gemm_serial(&product, thread_scratch(k));
    for (int64_t r = 0; r < k->n; r++) {
        float *logits = block_logits(k, i) + r * PITCH, maximum = kernels->maximum(logits, width);
        int64_t target = row_target(k, r) - begin;
        if (target >= 0 && target < width)
            note_target(k, r, logits, target, maximum);
        k->b.maxima[i * k->l.rows + r] = maximum;
        k->b.sums[i * k->l.rows + r] = kernels->exp_shifted(logits, maximum, width);
    }
}

/* Loss of row r from the statistics of all blocks, in block order and double. */
static void finish_row(const block *k, int64_t r, dt_cross_entropy_result *result)
{
    const dt_cross_entropy_args *a = k->a;
    int64_t rows = k->l.rows, first_block = -1;
    float maximum = -INFINITY;
    double sum = 0, weight = row_weight(k, r);
    for (int64_t i = 0; i < k->l.blocks; i++)
        if (k->b.maxima[i * rows + r] > maximum) {
            maximum = k->b.maxima[i * rows + r];
            first_block = i;
        }
    for (int64_t i = 0; i < k->l.blocks; i++)
        sum += k->b.sums[i * rows + r] * exp((double)k->b.maxima[i * rows + r] - maximum);
    double loss = maximum + log(sum) - k->b.target_logit[r];
    k->b.maximum[r] = maximum;
    k->b.factor[r] = (float)(dtp_grad_scale_now(a) * weight / sum);
    result->loss += weight * loss;
    result->targets++;
    result->correct += k->b.leads[r] && row_target(k, r) / VOCABULARY_BLOCK == first_block;
    if (dt_tensor_present(&a->row_loss))
        ((float *)a->row_loss.data)[k->b.index[k->first + r]] = (float)loss;
}

/* Exponentials of one block become gradients of the logits: the probability times grad_scale and the row's weight,
 * less the two at the target. */
static void differentiate_block(const block *k, int64_t i)
{
    const dt_row_kernels *kernels = dtp_row_kernels();
    int64_t width = block_width(k, i);
    for (int64_t r = 0; r < k->n; r++) {
        float *gradients = block_logits(k, i) + r * PITCH;
        int64_t target = row_target(k, r) - i * VOCABULARY_BLOCK;
        kernels->scale(gradients, k->b.factor[r] * expf(k->b.maxima[i * k->l.rows + r] - k->b.maximum[r]), width);
        if (target >= 0 && target < width)
            gradients[target] -= dtp_grad_scale_now(k->a) * row_weight(k, r);
    }
}

/* One slice of the vocabulary: its part of dh, and its rows of dW. */
static void backward_slice(const block *k, int64_t slice)
{
    const dt_cross_entropy_args *a = k->a;
    int64_t H = k->l.H, begin = slice * k->l.blocks / k->l.slices, end = (slice + 1) * k->l.blocks / k->l.slices;
    float *partial = k->b.partial + slice * k->l.rows * H;
    for (int64_t i = begin; i < end; i++) {
        const float *gradients = block_logits(k, i);
        int64_t width = block_width(k, i);
        differentiate_block(k, i);
        dt_gemm hidden = {.m = k->n,
                          .n = H,
                          .n_products = 1,
                          .product = {{width, 1, dtp_operand_f32(gradients, PITCH, DTP_N), weight_block(k, i, DTP_N)}},
                          .add = i > begin ? partial : NULL,
                          .ld_add = H,
                          .c = partial,
                          .ldc = H};
        dtp_gemm_serial(&hidden, thread_scratch(k));
        if (!dt_tensor_present(&a->dweight))
            continue;
        float *dweight = dtp_row(&a->dweight, i * VOCABULARY_BLOCK);
        dt_gemm weight = {
            .m = width,
            .n = H,
            .n_products = 1,
            .product = {{k->n, 1, dtp_operand_f32(gradients, PITCH, DTP_T), dtp_operand_f32(k->b.h, H, DTP_N)}},
            .add = dweight,
            .ld_add = a->dweight.stride[0],
            .c = dweight,
            .ldc = a->dweight.stride[0]};
        dtp_gemm_serial(&weight, thread_scratch(k));
    }
}

static void run_block(const dt_exec *exec, const block *k, dt_cross_entropy_result *result)
{
    const dt_cross_entropy_args *a = k->a;
    const dt_row_kernels *kernels = dtp_row_kernels();
    int64_t H = k->l.H;
    for (int64_t r = 0; r < k->n; r++)
        memcpy(k->b.h + r * H, dtp_row(&a->h, k->b.index[k->first + r]), (size_t)H * sizeof(float));
#pragma omp parallel for num_threads(exec->threads) schedule(dynamic)
    for (int64_t i = 0; i < k->l.blocks; i++)
        forward_block(k, i);
    for (int64_t r = 0; r < k->n; r++)
        finish_row(k, r, result);
    if (!dt_tensor_present(&a->dh))
        return;
#pragma omp parallel for num_threads(exec->threads) schedule(dynamic)
    for (int64_t slice = 0; slice < k->l.slices; slice++)
        backward_slice(k, slice);
#pragma omp parallel for num_threads(dtp_threads_for(exec, k->n *H)) schedule(static)
    for (int64_t r = 0; r < k->n; r++) {
        float *dh = dtp_row(&a->dh, k->b.index[k->first + r]);
        memcpy(dh, k->b.partial + r * H, (size_t)H * sizeof(float));
        for (int64_t slice = 1; slice < k->l.slices; slice++)
            kernels->add(dh, dh, k->b.partial + (slice * k->l.rows + r) * H, H);
    }
}

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)saved, (void)err;
    const dt_cross_entropy_args *a = args;
    const int32_t *target = a->target.data;
    block k = {.a = a, .l = layout_of(a)};
    place(exec, a, &k.l, workspace, &k.b);
    dt_cross_entropy_result result = {0};
    dtp_zero_rows(&a->dh, 0, a->dh.shape[0]);
    if (dt_tensor_present(&a->row_loss))
        memset(a->row_loss.data, 0, (size_t)a->row_loss.shape[0] * sizeof(float));
    int64_t count = 0;
    for (int64_t t = 0; t < a->T; t++)
        if (target[t] >= 0)
            k.b.index[count++] = (int32_t)t;
    int64_t parts = (count + k.l.rows - 1) / k.l.rows, each = parts ? (count + parts - 1) / parts : 0;
    for (; k.first < count; k.first += each) { /* equal blocks: a short one pays as much for the weight */
        k.n = count - k.first < each ? count - k.first : each;
        run_block(exec, &k, &result);
    }
    *(a->result_device ? a->result_device : a->result) = result;
    return DT_OK;
}

const dt_op_set dtp_cpu_cross_entropy = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_CROSS_ENTROPY,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_DETERMINISTIC,
    .verify = verify,
    .workspace_bytes = workspace_bytes,
    .forward = forward,
};
