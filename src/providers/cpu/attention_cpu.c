/* Flash-style tiles: scores exist for one tile of queries and one tile of keys at a time. Backward recomputes them
 * from the saved log-sum-exp, once by tiles of queries for dq and once by tiles of keys for dk and dv, so that every
 * output is written by one task and no sum depends on how tasks meet. */
#include "providers/cpu/blas.h"
#include "providers/cpu/common.h"
#include <deltune/op/attention.h>
#include <math.h>
#include <omp.h>

enum { Q_TILE = 64, K_TILE = 128 };

/* Rows begin .. end of one sample. */
typedef struct tile {
    int32_t sample, begin, end;
} tile;

static const dt_seqs *key_seqs(const dt_attention_args *a)
{
    return a->kv_seqs.n_seq ? &a->kv_seqs : &a->seqs;
}

static int64_t most_tiles(const dt_seqs *seqs, int64_t size)
{
    int64_t samples = seqs->n_seq_cap > seqs->n_seq ? seqs->n_seq_cap : seqs->n_seq;
    return seqs->T_cap / size + samples;
}

static int64_t list_tiles(const dt_seqs *seqs, int32_t size, tile *tiles)
{
    int64_t count = 0;
    for (int64_t n = 0; n < seqs->n_seq; n++)
        for (int32_t row = seqs->cu_seqlens[n]; row < seqs->cu_seqlens[n + 1]; row += size) {
            int32_t end = row + size < seqs->cu_seqlens[n + 1] ? row + size : seqs->cu_seqlens[n + 1];
            tiles[count++] = (tile){(int32_t)n, row, end};
        }
    return count;
}

/* What one thread works in. */
typedef struct scratch {
    float *p, *dp; /* [Q_TILE,K_TILE] */
    float *o;      /* [Q_TILE,D] */
    float maximum[Q_TILE], sum[Q_TILE];
} scratch;

static size_t scratch_elements(int64_t D)
{
    return (size_t)(2 * Q_TILE * K_TILE + Q_TILE * ((D + 15) / 16 * 16));
}

/* Workspace: the list of tiles, the row sums of do * o [H,T_cap], the scratch of the threads. */
typedef struct buffers {
    tile *tiles;
    float *delta, *scratch;
} buffers;

static size_t tile_bytes(const dt_attention_args *a)
{
    return (sizeof(tile) * (size_t)most_tiles(&a->seqs, Q_TILE) + 63) / 64 * 64;
}

static size_t row_values(const dt_attention_args *a)
{
    return (size_t)((a->q.shape[0] * a->q.shape[1] + 15) / 16 * 16);
}

static size_t workspace_bytes(const dt_exec *exec, const void *args, bool backward)
{
    const dt_attention_args *a = args;
    return tile_bytes(a) +
           sizeof(float) * ((backward ? row_values(a) : 0) + (size_t)exec->threads * scratch_elements(a->q.shape[2]));
}

static size_t saved_bytes(const dt_exec *exec, const void *args)
{
    (void)exec;
    return sizeof(float) * row_values(args); /* log-sum-exp [H,T_cap] */
}

static buffers buffers_of(const dt_attention_args *a, void *workspace, bool backward)
{
    float *after = (float *)((char *)workspace + tile_bytes(a));
    return (buffers){workspace, after, after + (backward ? row_values(a) : 0)};
}

static scratch scratch_of(const buffers *b, int64_t D)
{
    float *memory = b->scratch + (size_t)omp_get_thread_num() * scratch_elements(D);
    return (scratch){.p = memory, .dp = memory + Q_TILE * K_TILE, .o = memory + 2 * Q_TILE * K_TILE};
}

static int verify(const dt_exec *exec, const void *args, char *why, size_t why_size)
{
    (void)exec;
    const dt_attention_args *a = args;
    return dtp_is_f32(&a->q, "q", why, why_size) && dtp_is_f32(&a->k, "k", why, why_size) &&
           dtp_is_f32(&a->v, "v", why, why_size) && dtp_is_f32(&a->o, "o", why, why_size) &&
           dtp_is_f32(&a->d_o, "d_o", why, why_size) && dtp_is_f32(&a->dq, "dq", why, why_size) &&
           dtp_is_f32(&a->dk, "dk", why, why_size) && dtp_is_f32(&a->dv, "dv", why, why_size);
}

/* Key row of query row i minus i: query i sees keys up to its own place counted from the end of the sample. */
static int64_t diagonal(const dt_attention_args *a, int32_t sample)
{
    return (int64_t)key_seqs(a)->cu_seqlens[sample + 1] - a->seqs.cu_seqlens[sample + 1];
}

/* How many of the keys key .. key+columns query row i sees. */
static int64_t visible(int64_t i, int64_t offset, int64_t key, int64_t columns)
{
    int64_t n = i + offset + 1 - key;
    return n < 0 ? 0 : n > columns ? columns : n;
}

/* p = scale * Q K^T of one tile. */
static void scores(const dt_attention_args *a, const tile *q, int64_t head, int64_t key, int64_t columns, float *p)
{
    int64_t kv_head = head / (a->q.shape[1] / a->k.shape[1]);
    dtp_sgemm(DTP_N, DTP_T, q->end - q->begin, columns, a->q.shape[2], a->scale, dtp_head_row(&a->q, q->begin, head),
              a->q.stride[0], dtp_head_row(&a->k, key, kv_head), a->k.stride[0], 0, p, K_TILE);
}

/* One tile of keys enters the running softmax of a tile of queries: p becomes exp(score - maximum), hidden keys 0. */
static void online_softmax(const tile *q, int64_t offset, int64_t key, int64_t columns, int64_t D, scratch *s)
{
    const dt_row_kernels *kernels = dtp_row_kernels();
    for (int64_t i = 0; i < q->end - q->begin; i++) {
        float *p = s->p + i * K_TILE;
        int64_t n = visible(q->begin + i, offset, key, columns);
        float highest = kernels->maximum(p, n);
        float maximum = highest > s->maximum[i] ? highest : s->maximum[i];
        float shrink = n ? expf(s->maximum[i] - maximum) : 1;
        if (n)
            s->sum[i] = s->sum[i] * shrink + kernels->exp_shifted(p, maximum, n);
        memset(p + n, 0, (size_t)(columns - n) * sizeof *p);
        if (shrink != 1)
            kernels->scale(s->o + i * D, shrink, D);
        s->maximum[i] = maximum;
    }
}

static void forward_tile(const dt_attention_args *a, const tile *q, int64_t head, scratch *s, float *lse)
{
    int64_t D = a->q.shape[2], kv_head = head / (a->q.shape[1] / a->k.shape[1]), rows = q->end - q->begin;
    int64_t offset = diagonal(a, q->sample), end = q->end + offset;
    for (int64_t i = 0; i < rows; i++) {
        s->maximum[i] = -INFINITY;
        s->sum[i] = 0;
    }
    memset(s->o, 0, (size_t)(rows * D) * sizeof(float));
    for (int64_t key = key_seqs(a)->cu_seqlens[q->sample]; key < end; key += K_TILE) {
        int64_t columns = end - key < K_TILE ? end - key : K_TILE;
        scores(a, q, head, key, columns, s->p);
        online_softmax(q, offset, key, columns, D, s);
        dtp_sgemm(DTP_N, DTP_N, rows, D, columns, 1, s->p, K_TILE, dtp_head_row(&a->v, key, kv_head), a->v.stride[0], 1,
                  s->o, D);
    }
    for (int64_t i = 0; i < rows; i++) {
        float *o = dtp_head_row(&a->o, q->begin + i, head);
        memcpy(o, s->o + i * D, (size_t)D * sizeof(float));
        dtp_row_kernels()->scale(o, 1 / s->sum[i], D);
        if (lse)
            lse[head * a->q.shape[0] + q->begin + i] = s->maximum[i] + logf(s->sum[i]);
    }
}

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)err;
    const dt_attention_args *a = args;
    buffers b = buffers_of(a, workspace, false);
    int64_t heads = a->q.shape[1], tasks = heads * list_tiles(&a->seqs, Q_TILE, b.tiles);
#pragma omp parallel for num_threads(exec->threads) schedule(dynamic)
    for (int64_t i = 0; i < tasks; i++) {
        scratch s = scratch_of(&b, a->q.shape[2]);
        forward_tile(a, &b.tiles[i / heads], i % heads, &s, saved);
    }
    dtp_zero_rows(&a->o, a->seqs.T, a->o.shape[0]);
    return DT_OK;
}

/* p = probabilities and dp = gradients of the scores of one tile; hidden keys 0 in both. */
static void score_gradients(const dt_attention_args *a, const tile *q, int64_t head, int64_t key, int64_t columns,
                            const float *lse, const float *delta, scratch *s)
{
    const dt_row_kernels *kernels = dtp_row_kernels();
    int64_t kv_head = head / (a->q.shape[1] / a->k.shape[1]), rows = q->end - q->begin;
    scores(a, q, head, key, columns, s->p);
    dtp_sgemm(DTP_N, DTP_T, rows, columns, a->q.shape[2], 1, dtp_head_row(&a->d_o, q->begin, head), a->d_o.stride[0],
              dtp_head_row(&a->v, key, kv_head), a->v.stride[0], 0, s->dp, K_TILE);
    for (int64_t i = 0; i < rows; i++) {
        float *p = s->p + i * K_TILE, *dp = s->dp + i * K_TILE;
        int64_t n = visible(q->begin + i, 0, key, columns), at = head * a->q.shape[0] + q->begin + i;
        kernels->exp_scaled(p, lse[at], 1, n);
        kernels->softmax_backward(dp, p, delta[at], a->scale, n);
        memset(p + n, 0, (size_t)(columns - n) * sizeof *p);
        memset(dp + n, 0, (size_t)(columns - n) * sizeof *dp);
    }
}

static void query_tile_backward(const dt_attention_args *a, const tile *q, int64_t head, const float *lse,
                                const float *delta, scratch *s)
{
    int64_t D = a->q.shape[2], kv_head = head / (a->q.shape[1] / a->k.shape[1]);
    int64_t begin = a->seqs.cu_seqlens[q->sample];
    for (int64_t key = begin; key < q->end; key += K_TILE) {
        int64_t columns = q->end - key < K_TILE ? q->end - key : K_TILE;
        score_gradients(a, q, head, key, columns, lse, delta, s);
        dtp_sgemm(DTP_N, DTP_N, q->end - q->begin, D, columns, 1, s->dp, K_TILE, dtp_head_row(&a->k, key, kv_head),
                  a->k.stride[0], key == begin ? 0 : 1, dtp_head_row(&a->dq, q->begin, head), a->dq.stride[0]);
    }
}

/* dk and dv of a tile of keys: all query heads of the group, all tiles of queries from the diagonal on, in order. */
static void key_tile_backward(const dt_attention_args *a, const tile *k, int64_t kv_head, const float *lse,
                              const float *delta, scratch *s)
{
    int64_t D = a->q.shape[2], group = a->q.shape[1] / a->k.shape[1], columns = k->end - k->begin;
    int32_t last = a->seqs.cu_seqlens[k->sample + 1];
    float beta = 0, *dk = dtp_head_row(&a->dk, k->begin, kv_head), *dv = dtp_head_row(&a->dv, k->begin, kv_head);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int32_t row = k->begin; row < last; row += Q_TILE) {
            tile q = {k->sample, row, row + Q_TILE < last ? row + Q_TILE : last};
            int64_t rows = q.end - q.begin;
            score_gradients(a, &q, head, k->begin, columns, lse, delta, s);
            dtp_sgemm(DTP_T, DTP_N, columns, D, rows, 1, s->p, K_TILE, dtp_head_row(&a->d_o, row, head),
                      a->d_o.stride[0], beta, dv, a->dv.stride[0]);
            dtp_sgemm(DTP_T, DTP_N, columns, D, rows, 1, s->dp, K_TILE, dtp_head_row(&a->q, row, head), a->q.stride[0],
                      beta, dk, a->dk.stride[0]);
            beta = 1;
        }
}

static dt_status backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)err;
    const dt_attention_args *a = args;
    const dt_row_kernels *kernels = dtp_row_kernels();
    buffers b = buffers_of(a, workspace, true);
    int64_t heads = a->q.shape[1], kv_heads = a->k.shape[1], D = a->q.shape[2], pitch = a->q.shape[0];
    int64_t tiles = list_tiles(&a->seqs, Q_TILE, b.tiles);
#pragma omp parallel for num_threads(exec->threads) schedule(static)
    for (int64_t t = 0; t < a->seqs.T; t++)
        for (int64_t h = 0; h < heads; h++)
            b.delta[h * pitch + t] = kernels->dot(dtp_head_row(&a->d_o, t, h), dtp_head_row(&a->o, t, h), D);
#pragma omp parallel for num_threads(exec->threads) schedule(dynamic)
    for (int64_t i = 0; i < tiles * heads; i++) {
        scratch s = scratch_of(&b, D);
        query_tile_backward(a, &b.tiles[i / heads], i % heads, saved, b.delta, &s);
    }
    tiles = list_tiles(&a->seqs, K_TILE, b.tiles);
#pragma omp parallel for num_threads(exec->threads) schedule(dynamic)
    for (int64_t i = 0; i < tiles * kv_heads; i++) {
        scratch s = scratch_of(&b, D);
        key_tile_backward(a, &b.tiles[i / kv_heads], i % kv_heads, saved, b.delta, &s);
    }
    dtp_zero_rows(&a->dq, a->seqs.T, a->dq.shape[0]);
    dtp_zero_rows(&a->dk, a->seqs.T, a->dk.shape[0]);
    dtp_zero_rows(&a->dv, a->seqs.T, a->dv.shape[0]);
    return DT_OK;
}

const dt_op_set dtp_cpu_attention = {
    .struct_size = sizeof(dt_op_set),
    .op = DT_OP_ATTENTION,
    .caps = DT_CAP_PACKED | DT_CAP_BACKWARD | DT_CAP_GVA | DT_CAP_DETERMINISTIC,
    .verify = verify,
    .saved_bytes = saved_bytes,
    .workspace_bytes = workspace_bytes,
    .forward = forward,
    .backward = backward,
};
