#include "operators/check_tensor.h"

#include <stdarg.h>
#include <stdio.h>

static bool dtype_allowed(dt_check *c, dt_kind kind, dt_dtype dtype)
{
    switch (kind) {
    case DT_KIND_F32: return dtype == DT_F32;
    case DT_KIND_I32: return dtype == DT_I32;
    case DT_KIND_WEIGHT: return dtype == DT_F32 || dtype == DT_BF16;
    case DT_KIND_ACTIVATION:
        if (c->activation == DT_NONE && (dtype == DT_F32 || dtype == DT_BF16))
            c->activation = dtype;
        return dtype == c->activation && dtype != DT_NONE;
    }
    return false;
}

static const char *dtype_wanted(const dt_check *c, dt_kind kind)
{
    switch (kind) {
    case DT_KIND_F32: return "F32";
    case DT_KIND_I32: return "I32";
    case DT_KIND_WEIGHT: return "F32 or BF16";
    case DT_KIND_ACTIVATION: return c->activation == DT_NONE ? "F32 or BF16" : dt_dtype_name(c->activation);
    }
    return "?";
}

static void shape_text(char *out, size_t n, int rank, const int64_t *extent)
{
    size_t used = (size_t)snprintf(out, n, "[");
    for (int i = 0; i < rank && used < n; i++)
        used += extent[i] == DT_ANY
                    ? (size_t)snprintf(out + used, n - used, "%sany", i ? "," : "")
                    : (size_t)snprintf(out + used, n - used, "%s%lld", i ? "," : "", (long long)extent[i]);
    if (used < n)
        snprintf(out + used, n - used, "]");
}

void dtp_check_failed(dt_check *c, dt_status status, const char *format, ...)
{
    if (c->status != DT_OK)
        return;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    c->status = dt_fail(c->err, status, "%s: %s", c->op, text);
}

void dtp_check_tensor(dt_check *c, const char *name, const dt_tensor *t, dt_kind kind, int rank, const int64_t *extent)
{
    if (c->status != DT_OK)
        return;
    if (!t->data && c->phase != DT_PHASE_SIZE) {
        dtp_check_that(c, false, DT_E_ARG, "%s is missing", name);
        return;
    }
    if (t->dtype == DT_NONE && !t->data && c->phase == DT_PHASE_SIZE)
        return; /* asked for sizes before this tensor exists */
    dtp_check_that(c, dtype_allowed(c, kind, t->dtype), DT_E_DTYPE, "%s is %s, expected %s", name,
                   dt_dtype_name(t->dtype), dtype_wanted(c, kind));
    bool same = t->rank == rank;
    for (int i = 0; same && i < rank; i++)
        same = extent[i] == DT_ANY ? t->shape[i] >= 0 : t->shape[i] == extent[i];
    if (!same) {
        char found[96], wanted[96];
        shape_text(found, sizeof found, t->rank, t->shape);
        shape_text(wanted, sizeof wanted, rank, extent);
        dtp_check_that(c, false, DT_E_SHAPE, "%s is %s, expected %s", name, found, wanted);
        return;
    }
    dtp_check_that(c, t->shape[rank - 1] <= 1 || t->stride[rank - 1] == 1, DT_E_SHAPE,
                   "the last dimension of %s has stride %lld, expected 1", name, (long long)t->stride[rank - 1]);
}

void dtp_check_like(dt_check *c, const char *name, const dt_tensor *t, dt_kind kind, const char *like_name,
                    const dt_tensor *like)
{
    dt_status before = c->status;
    dtp_check_tensor(c, name, t, kind, like->rank, like->shape);
    if (before == DT_OK && c->status == DT_E_SHAPE)
        dt_err_prefix(c->err, "[%s must have the shape of %s] ", name, like_name);
}

void dtp_check_optional(dt_check *c, const char *name, const dt_tensor *t, dt_kind kind, int rank,
                        const int64_t *extent)
{
    if (t->data)
        dtp_check_tensor(c, name, t, kind, rank, extent);
}

void dtp_check_rows(dt_check *c, const char *name, const dt_tensor *t, dt_kind kind)
{
    int rank = t->rank == 3 ? 3 : 2;
    dtp_check_tensor(c, name, t, kind, rank, DT_EXTENT(DT_ANY, DT_ANY, DT_ANY));
}

void dtp_check_used_rows(dt_check *c, int64_t T, int64_t rows)
{
    dtp_check_that(c, T >= 0 && T <= rows, DT_E_ARG, "T is %lld, but the tensors have %lld rows", (long long)T,
                   (long long)rows);
}

void dtp_check_seqs(dt_check *c, const char *name, const dt_seqs *s, int64_t rows)
{
    if (c->status != DT_OK)
        return;
    dtp_check_that(c, s->T_cap == rows, DT_E_SHAPE, "%s.T_cap is %lld, but the tensors have %lld rows", name,
                   (long long)s->T_cap, (long long)rows);
    dtp_check_that(c, s->T >= 0 && s->T <= s->T_cap, DT_E_ARG, "%s.T is %lld, outside 0..%lld", name, (long long)s->T,
                   (long long)s->T_cap);
    dtp_check_that(c, s->n_seq >= 0 && s->n_seq <= s->n_seq_cap, DT_E_ARG, "%s.n_seq is %lld, its capacity %lld", name,
                   (long long)s->n_seq, (long long)s->n_seq_cap);
    if (c->phase == DT_PHASE_SIZE || c->status != DT_OK)
        return;
    dtp_check_that(c, s->cu_seqlens != NULL, DT_E_ARG, "%s.cu_seqlens (host) is missing", name);
    dtp_check_that(c, s->cu_seqlens_device != NULL || c->exec->device == DT_DEVICE_CPU, DT_E_ARG,
                   "%s.cu_seqlens_device is missing on a %s call", name, dt_device_name(c->exec->device));
    if (c->status != DT_OK)
        return;
    const int32_t *cu = s->cu_seqlens;
    dtp_check_that(c, cu[0] == 0, DT_E_ARG, "%s.cu_seqlens[0] is %d, expected 0", name, cu[0]);
    for (int64_t n = 0; n < s->n_seq && c->status == DT_OK; n++)
        dtp_check_that(c, cu[n] <= cu[n + 1], DT_E_ARG, "%s.cu_seqlens decreases from %d to %d at sample %lld", name,
                       cu[n], cu[n + 1], (long long)n);
    if (c->status == DT_OK)
        dtp_check_that(c, cu[s->n_seq] == s->T, DT_E_ARG, "%s.cu_seqlens ends at %d, but T is %lld", name, cu[s->n_seq],
                       (long long)s->T);
}
