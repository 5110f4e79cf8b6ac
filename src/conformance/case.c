#include "conformance/case.h"

#include "core/file.h"
#include "core/json.h"
#include "model/safetensors.h"

#include <stdlib.h>
#include <string.h>

dt_status dtp_case_create(dt_case *out, dt_op op, const char *name, const char *params, dt_err *err)
{
    *out = (dt_case){.op = dtp_op_binding(op)};
    snprintf(out->name, sizeof out->name, "%s", name);
    if (!out->op)
        return dt_fail(err, DT_E_UNSUPPORTED, "%s: no cases are defined for the operator \"%s\"", name, dt_op_name(op));
    out->params = dtp_strdup(params);
    if (!out->params)
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", name);
    memcpy(out->args, &out->op->args_size, sizeof(size_t));
    json_t *object = NULL;
    dt_status status = dtp_json_parse(&object, params, strlen(params), name, err);
    if (status == DT_OK)
        status = out->op->params(out->args, object, name, err);
    json_decref(object);
    return status;
}

dt_case_tensor *dtp_case_add(dt_case *c, const char *name, int rank, const int64_t *shape)
{
    const dt_binding *binding = NULL;
    for (size_t i = 0; i < c->op->n; i++)
        if (strcmp(c->op->tensors[i].name, name) == 0)
            binding = &c->op->tensors[i];
    if (!binding || c->n == DT_CASE_MAX_TENSORS || rank < 1 || rank > DT_MAX_RANK)
        return NULL;
    dt_case_tensor *t = &c->tensor[c->n];
    *t = (dt_case_tensor){.binding = binding, .count = 1, .rank = rank};
    for (int i = 0; i < rank; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(t->count, shape[i], &t->count))
            return NULL;
    memcpy(t->shape, shape, (size_t)rank * sizeof *shape);
    t->values = dtp_calloc((size_t)t->count, sizeof *t->values);
    if (!t->values)
        return NULL;
    if (c->n++ == 0)
        c->rows = shape[0];
    return t;
}

const dt_case_tensor *dtp_case_find(const dt_case *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->tensor[i].binding->name, name) == 0)
            return &c->tensor[i];
    return NULL;
}

dt_status dtp_case_set_boundaries(dt_case *c, const int32_t *cu_seqlens, int64_t n_seq, dt_err *err)
{
    int32_t *copy = dtp_calloc((size_t)n_seq + 1, sizeof *copy);
    if (!copy)
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", c->name);
    memcpy(copy, cu_seqlens, (size_t)(n_seq + 1) * sizeof *copy);
    free(c->cu_seqlens);
    c->cu_seqlens = copy;
    c->n_seq = n_seq;
    return DT_OK;
}

void dtp_case_free(dt_case *c)
{
    for (int i = 0; i < c->n; i++)
        free(c->tensor[i].values);
    free(c->cu_seqlens);
    free(c->params);
    c->n = 0;
    c->cu_seqlens = NULL;
    c->params = NULL;
}

/* ---- files ---- */

/* Element by element: a case file may hold tensors that are not aligned for their dtype. */
static dt_status to_f32(const char *path, const dt_st_tensor *t, int64_t count, float *values, dt_err *err)
{
    const unsigned char *bytes = t->data;
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        double wide;
        switch (t->dtype) {
        case DT_F32: memcpy(&values[i], bytes + 4 * i, 4); break;
        case DT_BF16: memcpy(&half, bytes + 2 * i, 2), values[i] = dt_bf16_to_f32(half); break;
        case DT_F64: memcpy(&wide, bytes + 8 * i, 8), values[i] = (float)wide; break;
        default:
            return dt_fail(err, DT_E_DTYPE, "%s: %s is %s, expected F32, BF16 or F64", path, t->name, t->dtype_name);
        }
    }
    return DT_OK;
}

static dt_status read_tensor(dt_case *c, const char *path, const dt_st *file, const char *name, dt_err *err)
{
    const dt_st_tensor *t = dtp_st_find(file, name);
    if (!t)
        return DT_OK;
    if (t->rank < 1 || t->rank > DT_MAX_RANK)
        return dt_fail(err, DT_E_FORMAT, "%s: %s has rank %d, expected 1 to %d", path, t->name, t->rank, DT_MAX_RANK);
    dt_case_tensor *to = dtp_case_add(c, name, t->rank, t->shape);
    if (!to)
        return dt_fail(err, DT_E_NOMEM, "%s: cannot hold %s", path, t->name);
    return to_f32(path, t, to->count, to->values, err);
}

static dt_status read_boundaries(dt_case *c, const char *path, const dt_st *file, dt_err *err)
{
    const dt_st_tensor *t = dtp_st_find(file, "cu_seqlens");
    if (!t || t->rank != 1 || t->shape[0] < 1 || (t->dtype != DT_I32 && t->dtype != DT_I64))
        return dt_fail(err, DT_E_FORMAT, "%s: cu_seqlens must be there, [n+1], I32 or I64", path);
    c->n_seq = t->shape[0] - 1;
    c->cu_seqlens = dtp_calloc((size_t)t->shape[0], sizeof(int32_t));
    if (!c->cu_seqlens)
        return dt_fail(err, DT_E_NOMEM, "%s: cannot hold cu_seqlens", path);
    for (int64_t i = 0; i <= c->n_seq; i++) {
        int64_t wide = 0;
        if (t->dtype == DT_I64)
            memcpy(&wide, (const char *)t->data + 8 * i, 8);
        else
            memcpy(&c->cu_seqlens[i], (const char *)t->data + 4 * i, 4);
        if (t->dtype == DT_I64 && (wide < 0 || wide > INT32_MAX))
            return dt_fail(err, DT_E_FORMAT, "%s: cu_seqlens[%lld] is %lld", path, (long long)i, (long long)wide);
        if (t->dtype == DT_I64)
            c->cu_seqlens[i] = (int32_t)wide;
    }
    return DT_OK;
}

static dt_status read_file(dt_case *c, const char *path, const dt_st *file, dt_err *err)
{
    const char *op = dtp_st_metadata(file, "op"), *params = dtp_st_metadata(file, "params");
    if (!op)
        return dt_fail(err, DT_E_FORMAT, "%s: no reference case: its metadata names no `op`", path);
    if (!dtp_op_binding(dt_op_by_name(op)))
        return dt_fail(err, DT_E_UNSUPPORTED, "%s: no cases are defined for the operator \"%s\"", path, op);
    dt_status status = dtp_case_create(c, dt_op_by_name(op), path, params ? params : "{}", err);
    for (size_t i = 0; status == DT_OK && i < c->op->n; i++)
        status = read_tensor(c, path, file, c->op->tensors[i].name, err);
    if (status == DT_OK && c->n == 0)
        status = dt_fail(err, DT_E_FORMAT, "%s: holds none of the tensors of %s", path, op);
    if (status == DT_OK && c->op->seqs_offset)
        status = read_boundaries(c, path, file, err);
    return status;
}

dt_status dtp_case_open(dt_case *out, const char *path, dt_err *err)
{
    dt_st *file;
    *out = (dt_case){0};
    dt_status status = dtp_st_open(&file, path, err);
    if (status != DT_OK)
        return status;
    status = read_file(out, path, file, err);
    dtp_st_close(file);
    const char *base = dtp_path_base(path), *dot = strrchr(base, '.');
    snprintf(out->name, sizeof out->name, "%.*s", dot ? (int)(dot - base) : (int)strlen(base), base);
    if (status != DT_OK)
        dtp_case_free(out);
    return status;
}

dt_status dtp_case_save(const dt_case *c, const char *path, dt_err *err)
{
    dt_st_spec specs[DT_CASE_MAX_TENSORS + 1];
    size_t n = 0;
    for (int i = 0; i < c->n; i++) {
        specs[n] = (dt_st_spec){
            .name = c->tensor[i].binding->name, .dtype = "F32", .rank = c->tensor[i].rank, .data = c->tensor[i].values};
        memcpy(specs[n++].shape, c->tensor[i].shape, sizeof c->tensor[i].shape);
    }
    if (c->cu_seqlens)
        specs[n++] = (dt_st_spec){
            .name = "cu_seqlens", .dtype = "I32", .rank = 1, .shape = {c->n_seq + 1}, .data = c->cu_seqlens};
    const dt_st_meta meta[] = {{"op", dt_op_name(c->op->op)}, {"params", c->params}};
    return dtp_st_write(path, specs, n, meta, 2, NULL, NULL, err);
}
