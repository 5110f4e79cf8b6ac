/* What the operator tests share: tensors surrounded by NaN, calls of one operator set with memory of exactly the size
 * it asked for, and the error ratio of the conformance rules. For tests only, included by one file each.
 *
 * Ratio = RMS(x - ref) / (RMS(ref) + 1e-8), for the whole tensor and for every slice (sample x head); a slice also
 * passes when max|x - ref| <= 1e-6; NaN fails. */
#ifndef DT_PROVIDERS_OP_TESTING_H
#define DT_PROVIDERS_OP_TESTING_H

#include "core/test.h"

#include <deltune/provider.h>

#include <sys/mman.h>

#define MAYBE_UNUSED __attribute__((unused))

/* ---- memory with guards ---- */

enum { OT_GUARD = 256, OT_MAX_BLOCKS = 512 }; /* bytes of NaN on both sides of every tensor */

typedef struct {
    unsigned char *base, *data;
    size_t bytes, total;
} ot_block;

/* Everything one test allocates; checked and freed together. */
typedef struct {
    ot_block block[OT_MAX_BLOCKS];
    size_t n;
} ot_pool;

/* `shift` moves the start off its 64-byte alignment. Filled with NaN. */
static MAYBE_UNUSED void *ot_alloc(ot_pool *pool, size_t bytes, size_t shift)
{
    assert_true(pool->n < OT_MAX_BLOCKS);
    size_t total = (OT_GUARD + shift + bytes + OT_GUARD + 63) / 64 * 64;
    unsigned char *base = aligned_alloc(64, total);
    assert_non_null(base);
    memset(base, 0xff, total);
    ot_block block = {base, base + OT_GUARD + shift, bytes, total};
    pool->block[pool->n++] = block;
    return block.data;
}

/* Fails when anything outside a block was written; frees all. */
static MAYBE_UNUSED void ot_finish(ot_pool *pool)
{
    for (size_t i = 0; i < pool->n; i++) {
        const ot_block *b = &pool->block[i];
        for (const unsigned char *p = b->base; p < b->base + b->total; p++)
            if ((p < b->data || p >= b->data + b->bytes) && *p != 0xff)
                fail_msg("memory %td bytes from the start of a block of %zu was written", p - b->data, b->bytes);
        free(b->base);
    }
    pool->n = 0;
}

/* ---- random numbers: fixed, the same on every machine ---- */

static MAYBE_UNUSED double ot_uniform(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    uint64_t x = *seed >> 11;
    return (double)x / 9007199254740992.0;
}

static MAYBE_UNUSED double ot_normal(uint64_t *seed)
{
    double u = ot_uniform(seed), v = ot_uniform(seed);
    return sqrt(-2.0 * log(u + 1e-300)) * cos(6.283185307179586 * v);
}

/* ---- tensors ---- */

/* Elements from the first to the last, gaps included. */
static MAYBE_UNUSED size_t ot_span(const dt_tensor *t)
{
    int64_t last = 1;
    for (int i = 0; i < t->rank; i++) {
        if (t->shape[i] == 0)
            return 0;
        last += (t->shape[i] - 1) * t->stride[i];
    }
    return (size_t)last;
}

/* NaN-filled; `pad` more elements between rows (dimension 0), so that the view is a slice of something wider. */
static MAYBE_UNUSED dt_tensor ot_tensor(ot_pool *pool, dt_dtype dtype, int rank, const int64_t *shape, int64_t pad)
{
    dt_tensor t = {.dtype = dtype, .rank = rank, .shape = {1, 1, 1, 1}, .stride = {1, 1, 1, 1}};
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; i--) {
        t.shape[i] = shape[i];
        t.stride[i] = stride;
        stride *= shape[i];
    }
    if (rank > 1)
        t.stride[0] += pad;
    size_t size = dt_dtype_size(dtype);
    t.data = ot_alloc(pool, ot_span(&t) * size, pad ? size : 0);
    return t;
}

static MAYBE_UNUSED double ot_get(const dt_tensor *t, int64_t at)
{
    switch (t->dtype) {
    case DT_BF16: return (double)dt_bf16_to_f32(((const uint16_t *)t->data)[at]);
    case DT_F64: return ((const double *)t->data)[at];
    default: return (double)((const float *)t->data)[at];
    }
}

static MAYBE_UNUSED void ot_set(const dt_tensor *t, int64_t at, double value)
{
    switch (t->dtype) {
    case DT_BF16: ((uint16_t *)t->data)[at] = dt_f32_to_bf16((float)value); break;
    case DT_F64: ((double *)t->data)[at] = value; break;
    default: ((float *)t->data)[at] = (float)value;
    }
}

/* Offset of the element with this row-major number. */
static MAYBE_UNUSED int64_t ot_offset(const dt_tensor *t, int64_t number)
{
    int64_t at = 0;
    for (int i = t->rank - 1; i >= 0; i--) {
        at += number % t->shape[i] * t->stride[i];
        number /= t->shape[i];
    }
    return at;
}

static MAYBE_UNUSED void ot_copy(const dt_tensor *to, const dt_tensor *from)
{
    for (int64_t i = 0; i < dt_tensor_numel(from); i++)
        ot_set(to, ot_offset(to, i), ot_get(from, ot_offset(from, i)));
}

/* A view whose rows are 2^30 elements apart, over pages that exist only where they are touched: the third row starts
 * behind element 2^31. NULL data when the system refuses so much address space. Unmap with ot_unmap_far. */
static MAYBE_UNUSED dt_tensor ot_far_rows(const dt_tensor *like)
{
    dt_tensor t = *like;
    t.stride[0] = (int64_t)1 << 30;
    size_t bytes = ot_span(&t) * dt_dtype_size(t.dtype);
    t.data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (t.data == MAP_FAILED)
        t.data = NULL;
    else
        ot_copy(&t, like);
    return t;
}

static MAYBE_UNUSED void ot_unmap_far(dt_tensor *t)
{
    if (t->data)
        munmap(t->data, ot_span(t) * dt_dtype_size(t->dtype));
}

/* A copy in other memory. */
static MAYBE_UNUSED dt_tensor ot_like(ot_pool *pool, const dt_tensor *from, dt_dtype dtype, int64_t pad)
{
    dt_tensor t = ot_tensor(pool, dtype, from->rank, from->shape, pad);
    ot_copy(&t, from);
    return t;
}

static MAYBE_UNUSED void ot_fill(const dt_tensor *t, double value)
{
    for (int64_t i = 0; i < dt_tensor_numel(t); i++)
        ot_set(t, ot_offset(t, i), value);
}

/* Normal numbers times `scale`, exactly representable in bf16 so that every dtype holds the same. */
static MAYBE_UNUSED void ot_fill_normal(const dt_tensor *t, uint64_t *seed, double scale)
{
    for (int64_t i = 0; i < dt_tensor_numel(t); i++)
        ot_set(t, ot_offset(t, i), (double)dt_bf16_to_f32(dt_f32_to_bf16((float)(scale * ot_normal(seed)))));
}

/* Uniform in [low, high). */
static MAYBE_UNUSED void ot_fill_uniform(const dt_tensor *t, uint64_t *seed, double low, double high)
{
    for (int64_t i = 0; i < dt_tensor_numel(t); i++)
        ot_set(t, ot_offset(t, i),
               (double)dt_bf16_to_f32(dt_f32_to_bf16((float)(low + (high - low) * ot_uniform(seed)))));
}

/* ---- calls ---- */

typedef struct {
    ot_pool pool;
    dt_exec exec;
    void *saved;
} ot_call;

static MAYBE_UNUSED ot_call ot_begin(int threads)
{
    return (ot_call){.exec = {.struct_size = sizeof(dt_exec), .device = DT_DEVICE_CPU, .threads = threads}};
}

/* 64-byte aligned, NaN-filled memory of exactly this size. */
static MAYBE_UNUSED void ot_forward(ot_call *c, const dt_op_set *set, const void *args, bool keep)
{
    dt_err err = {0};
    size_t bytes = set->workspace_bytes ? set->workspace_bytes(&c->exec, args, false) : 0;
    void *workspace = ot_alloc(&c->pool, bytes, 0);
    c->saved = keep ? ot_alloc(&c->pool, set->saved_bytes ? set->saved_bytes(&c->exec, args) : 0, 0) : NULL;
    assert_ok(set->forward(&c->exec, args, c->saved, workspace, &err), &err);
}

static MAYBE_UNUSED void ot_backward(ot_call *c, const dt_op_set *set, const void *args)
{
    dt_err err = {0};
    size_t bytes = set->workspace_bytes ? set->workspace_bytes(&c->exec, args, true) : 0;
    void *workspace = ot_alloc(&c->pool, bytes, 0);
    assert_ok(set->backward(&c->exec, args, c->saved, workspace, &err), &err);
}

/* ---- comparison ---- */

typedef struct {
    double error, reference, worst;
    int64_t n;
} ot_sum;

static MAYBE_UNUSED double ot_ratio(const ot_sum *s)
{
    return s->n == 0 ? 0.0 : sqrt(s->error / (double)s->n) / (sqrt(s->reference / (double)s->n) + 1e-8);
}

/* Which sample a row belongs to; n_seq for rows behind the last boundary. */
static MAYBE_UNUSED int64_t ot_sample_of(const dt_seqs *seqs, int64_t row)
{
    int64_t n = 0;
    while (n < seqs->n_seq && row >= seqs->cu_seqlens[n + 1])
        n++;
    return n;
}

static MAYBE_UNUSED bool ot_row_is_zero(const dt_tensor *x, int64_t row)
{
    int64_t width = x->shape[x->rank - 1];
    for (int64_t i = 0; i < width; i++)
        if (ot_get(x, ot_offset(x, row * width + i)) != 0.0)
            return false;
    return true;
}

/* How the elements of a tensor fall into slices. */
typedef enum {
    OT_WHOLE, /* one slice: parameters and their gradients */
    OT_ROWS,  /* [T,...]: by sample */
    OT_HEADS, /* [T,heads,...]: by sample and head */
    OT_STATES /* [n_seq,heads,...]: by sample and head */
} ot_slicing;

/* Fails when `got` is not `want` within `tolerance`; returns the largest ratio, of the tensor or of a slice
 * that needed the tolerance.
 * zero_rows: rows (all but the last dimension) that are 0 in this tensor form slices of their own; NULL: none. */
static MAYBE_UNUSED double ot_compare(const char *what, const dt_tensor *got, const dt_tensor *want, ot_slicing slicing,
                                      const dt_seqs *seqs, const dt_tensor *zero_rows, double tolerance)
{
    int64_t numel = dt_tensor_numel(want), width = want->shape[want->rank - 1];
    assert_int_equal(dt_tensor_numel(got), numel);
    if (numel == 0)
        return 0.0;
    int64_t samples = slicing == OT_WHOLE ? 1 : seqs->n_seq + 1;
    int64_t heads = slicing == OT_HEADS || slicing == OT_STATES ? want->shape[1] : 1;
    int64_t per_row = numel / want->shape[0], whole = 2 * samples * heads;
    ot_sum *slice = calloc((size_t)(whole + 1), sizeof *slice);
    assert_non_null(slice);
    for (int64_t i = 0; i < numel; i++) {
        int64_t row = i / per_row, head = i % per_row / (per_row / heads);
        int64_t sample = slicing == OT_WHOLE ? 0 : slicing == OT_STATES ? row : ot_sample_of(seqs, row);
        bool zero = zero_rows && ot_row_is_zero(zero_rows, i / width);
        double x = ot_get(got, ot_offset(got, i)), ref = ot_get(want, ot_offset(want, i));
        if (isnan(x))
            fail_msg("%s: NaN at element %lld (row %lld)", what, (long long)i, (long long)row);
        ot_sum *sums[] = {&slice[(sample * heads + head) * 2 + zero], &slice[whole]};
        for (int k = 0; k < 2; k++) {
            sums[k]->error += (x - ref) * (x - ref);
            sums[k]->reference += ref * ref;
            sums[k]->worst = fmax(sums[k]->worst, fabs(x - ref));
            sums[k]->n++;
        }
    }
    double worst = 0.0;
    for (int64_t i = 0; i <= whole; i++) {
        double ratio = ot_ratio(&slice[i]);
        if (slice[i].worst <= 1e-6 && i < whole)
            continue;
        worst = fmax(worst, ratio);
        if (!(ratio < tolerance) && slice[i].worst > 1e-6)
            fail_msg("%s: ratio %.3g (limit %.3g, max error %.3g) in sample %lld head %lld", what, ratio, tolerance,
                     slice[i].worst, (long long)(i / 2 / heads), (long long)(i / 2 % heads));
    }
    free(slice);
    return worst;
}

/* Bit for bit. */
static MAYBE_UNUSED void ot_same(const char *what, const dt_tensor *a, const dt_tensor *b)
{
    for (int64_t i = 0; i < dt_tensor_numel(a); i++) {
        double x = ot_get(a, ot_offset(a, i)), y = ot_get(b, ot_offset(b, i));
        if (x != y && !(isnan(x) && isnan(y)))
            fail_msg("%s: element %lld is %.9g, expected %.9g", what, (long long)i, x, y);
    }
}

#endif
