/* Flash-style tiles: scores exist for one tile of queries and one tile of keys at a time, and backward recomputes them
 * from the saved log-sum-exp. All query heads that share a key head are served by one packing of its tiles.
 *
 * Every sum runs over tiles in one fixed order, so that the split of the work into tasks changes no bit: backward
 * takes a whole sample and key head per task when that fills all threads, else dk, dv by tiles of keys and dq by tiles
 * of queries with the scores computed twice. */
#include "providers/cpu/common.h"
#include "providers/cpu/gemm.h"
#include <deltune/op/attention.h>
#include <math.h>
#include <omp.h>

enum { Q_TILE = 64, K_TILE = 128, LD_TRANSPOSED = Q_TILE + 16 };

/* Rows begin .. end of one sample. */
typedef struct tile {
    int32_t sample, begin, end;
} tile;

static const dt_seqs *key_seqs(const dt_attention_args *a)
{
    return a->kv_seqs.n_seq ? &a->kv_seqs : &a->seqs;
}

static int64_t group_of(const dt_attention_args *a)
{
    return a->q.shape[1] / a->k.shape[1];
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
    float *k_transposed, *v_transposed; /* panels [D,K_TILE] */
    float *k, *v;                       /* panels [K_TILE,D] */
    float *q, *d_o;                     /* panels [Q_TILE,D] */
    float *p, *dp;                      /* [Q_TILE,K_TILE] */
    float *transposed;                  /* [K_TILE,LD_TRANSPOSED] */
    float *o;                           /* [group,Q_TILE,D] */
    float *maximum, *sum;               /* [group,Q_TILE] */
} scratch;

/* Hands out the pieces of a thread's memory; with memory NULL it only counts floats. */
static size_t place(const dt_attention_args *a, float *memory, scratch *s)
{
    int64_t D = a->q.shape[2], group = group_of(a);
    const struct {
        float **piece;
        int64_t floats;
    } pieces[] = {
        {&s->k_transposed, dtp_panel_floats(D, K_TILE)},
        {&s->v_transposed, dtp_panel_floats(D, K_TILE)},
        {&s->k, dtp_panel_floats(K_TILE, D)},
        {&s->v, dtp_panel_floats(K_TILE, D)},
        {&s->q, dtp_panel_floats(Q_TILE, D)},
        {&s->d_o, dtp_panel_floats(Q_TILE, D)},
        {&s->p, Q_TILE * K_TILE},
        {&s->dp, Q_TILE * K_TILE},
        {&s->transposed, K_TILE * LD_TRANSPOSED},
        {&s->o, group * Q_TILE * D},
        {&s->maximum, group * Q_TILE},
        {&s->sum, group * Q_TILE},
    };
    size_t used = 0;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        *pieces[i].piece = memory ? memory + used : NULL;
        used += (size_t)((pieces[i].floats + 15) / 16 * 16);
    }
    return used;
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
    scratch s;
    return tile_bytes(a) +
           sizeof(float) * ((backward ? row_values(a) : 0) + (size_t)exec->threads * place(a, NULL, &s));
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

static scratch thread_scratch(const dt_attention_args *a, const buffers *b)
{
    scratch s;
    size_t each = place(a, NULL, &s);
    place(a, b->scratch + (size_t)omp_get_thread_num() * each, &s);
    return s;
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

/* ---- tiles ---- */

/* op(B) of rows row .. row+rows of one head, as panels. */
static void pack(const dt_tensor *t, int64_t row, int64_t rows, int64_t head, dt_transpose trans, float *panels)
{
    dt_operand b = dtp_operand_f32(dtp_head_row(t, row, head), t->stride[0], trans);
    int64_t D = t->shape[2];
    dtp_gemm_kernels()->pack(panels, &b, trans ? D : rows, trans ? rows : D);
}

/* c[m,n] = alpha a[m,depth] panels[depth,n], added to c or not. */
static void multiply(int64_t m, int64_t n, int64_t depth, float alpha, const float *a, int64_t a_row,
                     const float *panels, bool accumulate, float *c, int64_t ldc)
{
    dt_block g = {.m = m,
                  .n = n,
                  .depth = depth,
                  .alpha = alpha,
                  .a = a,
                  .a_row = a_row,
                  .a_column = 1,
                  .panels = panels,
                  .add = accumulate ? c : NULL,
                  .ld_add = ldc,
                  .c = c,
                  .ldc = ldc};
    dtp_gemm_kernels()->multiply(&g);
}

/* How many of the keys key .. key+columns query row i sees; `offset` is its key row minus i. */
static int64_t visible(int64_t i, int64_t offset, int64_t key, int64_t columns)
{
    int64_t n = i + offset + 1 - key;
    return n < 0 ? 0 : n > columns ? columns : n;
}

/* ---- forward ---- */

/* One tile of keys enters the running softmax of a tile of queries: p becomes exp(score - maximum), hidden keys 0. */
static void online_softmax(const tile *q, int64_t offset, int64_t key, int64_t columns, int64_t D, float *p, float *o,
                           float *maxima, float *sums)
{
    const dt_row_kernels *kernels = dtp_row_kernels();
    for (int64_t i = 0; i < q->end - q->begin; i++, p += K_TILE, o += D) {
        int64_t n = visible(q->begin + i, offset, key, columns);
        memset(p + n, 0, (size_t)(columns - n) * sizeof *p);
        if (n == 0)
            continue;
        float highest = kernels->maximum(p, n), maximum = highest > maxima[i] ? highest : maxima[i];
        float shrink = expf(maxima[i] - maximum);
        sums[i] = sums[i] * shrink + kernels->exp_shifted(p, maximum, n);
        if (shrink != 1)
            kernels->scale(o, shrink, D);
        maxima[i] = maximum;
    }
}

static void write_output(const dt_attention_args *a, const tile *q, int64_t kv_head, const scratch *s, float *lse)
{
    int64_t D = a->q.shape[2], group = group_of(a);
    for (int64_t g = 0; g < group; g++)
        for (int64_t i = 0; i < q->end - q->begin; i++) {
            int64_t head = kv_head * group + g, at = g * Q_TILE + i;
            float *o = dtp_head_row(&a->o, q->begin + i, head);
            memcpy(o, s->o + at * D, (size_t)D * sizeof(float));
            dtp_row_kernels()->scale(o, 1 / s->sum[at], D);
            if (lse)
                lse[head * a->q.shape[0] + q->begin + i] = s->maximum[at] + logf(s->sum[at]);
        }
}

static void forward_tile(const dt_attention_args *a, const tile *q, int64_t kv_head, const scratch *s, float *lse)
{
    int64_t D = a->q.shape[2], group = group_of(a), rows = q->end - q->begin;
    const int32_t *keys = key_seqs(a)->cu_seqlens;
    /* Queries sit at the end of their sample's keys. */
    int64_t offset = (int64_t)keys[q->sample + 1] - a->seqs.cu_seqlens[q->sample + 1], end = q->end + offset;
    for (int64_t i = 0; i < group * Q_TILE; i++) {
        s->maximum[i] = -INFINITY;
        s->sum[i] = 0;
    }
    memset(s->o, 0, (size_t)(group * Q_TILE * D) * sizeof(float));
    for (int64_t key = keys[q->sample]; key < end; key += K_TILE) {
        int64_t columns = end - key < K_TILE ? end - key : K_TILE;
        pack(&a->k, key, columns, kv_head, DTP_T, s->k_transposed);
        pack(&a->v, key, columns, kv_head, DTP_N, s->v);
        for (int64_t g = 0; g < group; g++) {
            float *o = s->o + g * Q_TILE * D;
            multiply(rows, columns, D, a->scale, dtp_head_row(&a->q, q->begin, kv_head * group + g), a->q.stride[0],
                     s->k_transposed, false, s->p, K_TILE);
            online_softmax(q, offset, key, columns, D, s->p, o, s->maximum + g * Q_TILE, s->sum + g * Q_TILE);
            multiply(rows, D, columns, 1, s->p, K_TILE, s->v, true, o, D);
        }
    }
    write_output(a, q, kv_head, s, lse);
}

static dt_status forward(dt_exec *exec, const void *args, void *saved, void *workspace, dt_err *err)
{
    (void)err;
    const dt_attention_args *a = args;
    buffers b = buffers_of(a, workspace, false);
    int64_t kv_heads = a->k.shape[1], tasks = kv_heads * list_tiles(&a->seqs, Q_TILE, b.tiles);
#pragma omp parallel for num_threads(exec->threads) schedule(dynamic)
    for (int64_t i = tasks - 1; i >= 0; i--) { /* from the end: the last tiles of a sample have the most keys */
        scratch s = thread_scratch(a, &b);
        forward_tile(a, &b.tiles[i / kv_heads], i % kv_heads, &s, saved);
    }
    dtp_zero_rows(&a->o, a->seqs.T, a->o.shape[0]);
    return DT_OK;
}

/* ---- backward ---- */

typedef struct backward_call {
    const dt_attention_args *a;
    const float *lse, *delta; /* [H,T_cap] */
} backward_call;

/* p = probabilities and dp = gradients of the scores of one tile, hidden keys 0. Keys and values are packed. */
static void score_gradients(const backward_call *c, const tile *q, int64_t head, int64_t key, int64_t columns,
                            const scratch *s)
{
    const dt_attention_args *a = c->a;
    const dt_row_kernels *kernels = dtp_row_kernels();
    int64_t rows = q->end - q->begin, D = a->q.shape[2];
    multiply(rows, columns, D, a->scale, dtp_head_row(&a->q, q->begin, head), a->q.stride[0], s->k_transposed, false,
             s->p, K_TILE);
    multiply(rows, columns, D, 1, dtp_head_row(&a->d_o, q->begin, head), a->d_o.stride[0], s->v_transposed, false,
             s->dp, K_TILE);
    for (int64_t i = 0; i < rows; i++) {
        float *p = s->p + i * K_TILE, *dp = s->dp + i * K_TILE;
        int64_t n = visible(q->begin + i, 0, key, columns), at = head * a->q.shape[0] + q->begin + i;
        kernels->exp_scaled(p, c->lse[at], 1, n);
        kernels->softmax_backward(dp, p, c->delta[at], a->scale, n);
        memset(p + n, 0, (size_t)(columns - n) * sizeof *p);
        memset(dp + n, 0, (size_t)(columns - n) * sizeof *dp);
    }
}

static void pack_keys(const dt_attention_args *a, int64_t key, int64_t columns, int64_t kv_head, bool with_dq,
                      const scratch *s)
{
    pack(&a->k, key, columns, kv_head, DTP_T, s->k_transposed);
    pack(&a->v, key, columns, kv_head, DTP_T, s->v_transposed);
    if (with_dq)
        pack(&a->k, key, columns, kv_head, DTP_N, s->k);
}

/* dq += ds K of one tile; the first tile of keys writes it. */
static void add_dq(const backward_call *c, const tile *q, int64_t head, int64_t key, int64_t columns, const scratch *s)
{
    const dt_attention_args *a = c->a;
    multiply(q->end - q->begin, a->q.shape[2], columns, 1, s->dp, K_TILE, s->k, key > a->seqs.cu_seqlens[q->sample],
             dtp_head_row(&a->dq, q->begin, head), a->dq.stride[0]);
}

/* to[columns,D] (+)= from^T [columns,rows] times the packed rows of dO or Q. */
static void add_transposed(const dt_tensor *to, const tile *k, int64_t kv_head, const float *from, int64_t rows,
                           const float *panels, bool accumulate, const scratch *s)
{
    int64_t columns = k->end - k->begin;
    dtp_gemm_kernels()->transpose(s->transposed, LD_TRANSPOSED, from, K_TILE, rows, columns);
    multiply(columns, to->shape[2], rows, 1, s->transposed, LD_TRANSPOSED, panels, accumulate,
             dtp_head_row(to, k->begin, kv_head), to->stride[0]);
}

/* dk and dv of a tile of keys: all query heads of the group, all tiles of queries from the diagonal on, in order;
 * on the way also its part of dq. */
static void key_tile_backward(const backward_call *c, const tile *k, int64_t kv_head, bool with_dq, const scratch *s)
{
    const dt_attention_args *a = c->a;
    int64_t group = group_of(a), columns = k->end - k->begin;
    int32_t last = a->seqs.cu_seqlens[k->sample + 1];
    bool accumulate = false;
    pack_keys(a, k->begin, columns, kv_head, with_dq, s);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int32_t row = k->begin; row < last; row += Q_TILE) {
            tile q = {k->sample, row, row + Q_TILE < last ? row + Q_TILE : last};
            int64_t rows = q.end - q.begin;
            score_gradients(c, &q, head, k->begin, columns, s);
            pack(&a->d_o, row, rows, head, DTP_N, s->d_o);
            pack(&a->q, row, rows, head, DTP_N, s->q);
            add_transposed(&a->dv, k, kv_head, s->p, rows, s->d_o, accumulate, s);
            add_transposed(&a->dk, k, kv_head, s->dp, rows, s->q, accumulate, s);
            if (with_dq)
                add_dq(c, &q, head, k->begin, columns, s);
            accumulate = true;
        }
}

/* All of one sample and key head, tiles of keys in order. */
static void sample_backward(const backward_call *c, int32_t sample, int64_t kv_head, const scratch *s)
{
    int32_t end = c->a->seqs.cu_seqlens[sample + 1];
    for (int32_t key = c->a->seqs.cu_seqlens[sample]; key < end; key += K_TILE) {
        tile k = {sample, key, key + K_TILE < end ? key + K_TILE : end};
        key_tile_backward(c, &k, kv_head, true, s);
    }
}

static void query_tile_backward(const backward_call *c, const tile *q, int64_t kv_head, const scratch *s)
{
    int64_t group = group_of(c->a);
    for (int64_t key = c->a->seqs.cu_seqlens[q->sample]; key < q->end; key += K_TILE) {
        int64_t columns = q->end - key < K_TILE ? q->end - key : K_TILE;
        pack_keys(c->a, key, columns, kv_head, true, s);
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
            score_gradients(c, q, head, key, columns, s);
            add_dq(c, q, head, key, columns, s);
        }
    }
}

/* Whole samples as tasks fill all threads when the longest is no more than one thread's share. */
static bool samples_fill_threads(const dt_exec *exec, const dt_attention_args *a)
{
    double total = 0, longest = 0;
    for (int64_t n = 0; n < a->seqs.n_seq; n++) {
        double length = a->seqs.cu_seqlens[n + 1] - a->seqs.cu_seqlens[n];
        total += length * length;
        longest = length * length > longest ? length * length : longest;
    }
    return longest * exec->threads <= total * (double)a->k.shape[1];
}

static void run_backward(const dt_exec *exec, const backward_call *c, const buffers *b)
{
    const dt_attention_args *a = c->a;
    int64_t kv_heads = a->k.shape[1];
    if (samples_fill_threads(exec, a)) {
#pragma omp parallel for num_threads(exec->threads) schedule(dynamic)
        for (int64_t i = 0; i < a->seqs.n_seq * kv_heads; i++) {
            scratch s = thread_scratch(a, b);
            sample_backward(c, (int32_t)(i / kv_heads), i % kv_heads, &s);
        }
        return;
    }
    int64_t tiles = list_tiles(&a->seqs, Q_TILE, b->tiles);
#pragma omp parallel for num_threads(exec->threads) schedule(dynamic)
    for (int64_t i = tiles * kv_heads - 1; i >= 0; i--) {
        scratch s = thread_scratch(a, b);
        query_tile_backward(c, &b->tiles[i / kv_heads], i % kv_heads, &s);
    }
    tiles = list_tiles(&a->seqs, K_TILE, b->tiles);
#pragma omp parallel for num_threads(exec->threads) schedule(dynamic)
    for (int64_t i = 0; i < tiles * kv_heads; i++) {
        scratch s = thread_scratch(a, b);
        key_tile_backward(c, &b->tiles[i / kv_heads], i % kv_heads, false, &s);
    }
}

static dt_status backward(dt_exec *exec, const void *args, const void *saved, void *workspace, dt_err *err)
{
    (void)err;
    const dt_attention_args *a = args;
    const dt_row_kernels *kernels = dtp_row_kernels();
    buffers b = buffers_of(a, workspace, true);
    backward_call c = {a, saved, b.delta};
    int64_t heads = a->q.shape[1], D = a->q.shape[2], pitch = a->q.shape[0];
#pragma omp parallel for num_threads(dtp_threads_for(exec, a->seqs.T *heads *D)) schedule(static)
    for (int64_t t = 0; t < a->seqs.T; t++)
        for (int64_t h = 0; h < heads; h++)
            b.delta[h * pitch + t] = kernels->dot(dtp_head_row(&a->d_o, t, h), dtp_head_row(&a->o, t, h), D);
    run_backward(exec, &c, &b);
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
