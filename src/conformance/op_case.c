#include "conformance/op_case.h"

#include "conformance/bindings.h"
#include "conformance/guarded.h"
#include "core/file.h"
#include "core/json.h"
#include "model/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TENSORS = 24 };

/* One tensor of the case: its values in the file, and its device buffer during the run. */
typedef struct dt_case_tensor {
    const dt_binding *binding;
    float *values; /* of the file, as fp32 */
    int64_t count, shape[DT_MAX_RANK];
    int rank;
    dt_guarded buffer;
} dt_case_tensor;

typedef struct dt_run {
    dt_exec *exec;
    const char *path;
    const dt_case_options *options;
    dt_st *file;
    const dt_op_binding *op;
    dt_case_tensor tensor[MAX_TENSORS];
    int n;
    int32_t *cu_seqlens; /* NULL when the operator takes none */
    int64_t n_seq, rows;
    void *cu_device;
    _Alignas(64) unsigned char args[4096];
    dt_saved saved;
    bool backward;
} dt_run;

/* ---- reading ---- */

/* Element by element: a case file may hold tensors that are not aligned for their dtype. */
static dt_status to_f32(const dt_run *run, const dt_st_tensor *t, int64_t count, float *values, dt_err *err)
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
            return dt_fail(err, DT_E_DTYPE, "%s: %s is %s, expected F32, BF16 or F64", run->path, t->name,
                           t->dtype_name);
        }
    }
    return DT_OK;
}

static dt_status read_tensor(dt_run *run, const dt_binding *binding, dt_err *err)
{
    const dt_st_tensor *t = dtp_st_find(run->file, binding->name);
    if (!t)
        return DT_OK;
    dt_case_tensor *c = &run->tensor[run->n++];
    *c = (dt_case_tensor){.binding = binding, .count = 1, .rank = t->rank};
    if (t->rank < 1 || t->rank > DT_MAX_RANK)
        return dt_fail(err, DT_E_FORMAT, "%s: %s has rank %d, expected 1 to %d", run->path, t->name, t->rank,
                       DT_MAX_RANK);
    for (int i = 0; i < t->rank; i++)
        c->count *= c->shape[i] = t->shape[i];
    c->values = dtp_calloc((size_t)c->count, sizeof(float));
    if (!c->values)
        return dt_fail(err, DT_E_NOMEM, "%s: cannot hold %s", run->path, t->name);
    return to_f32(run, t, c->count, c->values, err);
}

static dt_status read_boundaries(dt_run *run, dt_err *err)
{
    const dt_st_tensor *t = dtp_st_find(run->file, "cu_seqlens");
    if (!t || t->rank != 1 || t->shape[0] < 1 || (t->dtype != DT_I32 && t->dtype != DT_I64))
        return dt_fail(err, DT_E_FORMAT, "%s: cu_seqlens must be there, [n+1], I32 or I64", run->path);
    run->n_seq = t->shape[0] - 1;
    run->cu_seqlens = dtp_calloc((size_t)t->shape[0], sizeof(int32_t));
    if (!run->cu_seqlens)
        return dt_fail(err, DT_E_NOMEM, "%s: cannot hold cu_seqlens", run->path);
    for (int64_t i = 0; i <= run->n_seq; i++) {
        int64_t wide = 0;
        if (t->dtype == DT_I64)
            memcpy(&wide, (const char *)t->data + 8 * i, 8);
        else
            memcpy(&run->cu_seqlens[i], (const char *)t->data + 4 * i, 4);
        if (t->dtype == DT_I64 && (wide < 0 || wide > INT32_MAX))
            return dt_fail(err, DT_E_FORMAT, "%s: cu_seqlens[%lld] is %lld", run->path, (long long)i, (long long)wide);
        if (t->dtype == DT_I64)
            run->cu_seqlens[i] = (int32_t)wide;
    }
    return DT_OK;
}

static dt_status find_op(const dt_st *file, const char *path, dt_op *op_out, dt_err *err)
{
    const char *op = dtp_st_metadata(file, "op");
    if (!op)
        return dt_fail(err, DT_E_FORMAT, "%s: no reference case: its metadata names no `op`", path);
    *op_out = dt_op_by_name(op);
    if (!dtp_op_binding(*op_out))
        return dt_fail(err, DT_E_UNSUPPORTED, "%s: no cases are defined for the operator \"%s\"", path, op);
    return DT_OK;
}

dt_status dtp_op_of_case(const char *path, dt_op *op_out, dt_err *err)
{
    dt_st *file;
    dt_status status = dtp_st_open(&file, path, err);
    if (status != DT_OK)
        return status;
    status = find_op(file, path, op_out, err);
    dtp_st_close(file);
    return status;
}

static dt_status read_case(dt_run *run, dt_op *op_out, dt_err *err)
{
    dt_status status = dtp_st_open(&run->file, run->path, err);
    if (status == DT_OK)
        status = find_op(run->file, run->path, op_out, err);
    if (status != DT_OK)
        return status;
    const char *params = dtp_st_metadata(run->file, "params");
    run->op = dtp_op_binding(*op_out);
    for (size_t i = 0; i < run->op->n && status == DT_OK; i++)
        status = read_tensor(run, &run->op->tensors[i], err);
    if (status == DT_OK && run->n == 0)
        status = dt_fail(err, DT_E_FORMAT, "%s: holds none of the tensors of %s", run->path, dt_op_name(*op_out));
    if (status == DT_OK && run->op->seqs_offset)
        status = read_boundaries(run, err);
    if (status != DT_OK)
        return status;
    run->rows = run->tensor[0].shape[0];
    memcpy(run->args, &run->op->args_size, sizeof(size_t));
    json_t *object = NULL;
    status = dtp_json_parse(&object, params ? params : "{}", params ? strlen(params) : 2, run->path, err);
    if (status == DT_OK)
        status = run->op->params(run->args, object, run->path, err);
    json_decref(object);
    return status;
}

/* ---- running ---- */

static dt_status make_buffer(dt_run *run, dt_case_tensor *c, dt_err *err)
{
    dt_dtype dtype = c->binding->activation ? run->options->activation : DT_F32;
    dt_status status = dtp_guarded_create(&c->buffer, run->exec, dtype, c->rank, c->shape, err);
    if (status != DT_OK)
        return status;
    bool given = c->binding->role == DT_ROLE_INPUT || c->binding->role == DT_ROLE_UPSTREAM;
    if (given)
        status = dtp_guarded_write(&c->buffer, run->exec, c->values, err);
    else if (c->binding->role == DT_ROLE_GRADIENT && !c->binding->activation) /* parameter gradients are added to */
        status = dt_exec_zero(run->exec, c->buffer.tensor.data, c->buffer.bytes, err);
    memcpy(run->args + c->binding->offset, &c->buffer.tensor, sizeof(dt_tensor));
    run->backward |= c->binding->role == DT_ROLE_UPSTREAM;
    return status;
}

static dt_status set_rows(dt_run *run, dt_err *err)
{
    if (run->op->T_offset)
        memcpy(run->args + run->op->T_offset, &run->rows, sizeof run->rows);
    if (!run->op->seqs_offset)
        return DT_OK;
    dt_seqs seqs = {.cu_seqlens = run->cu_seqlens,
                    .n_seq = run->n_seq,
                    .n_seq_cap = run->n_seq,
                    .T = run->rows,
                    .T_cap = run->rows};
    if (run->exec->device != DT_DEVICE_CPU) {
        size_t bytes = (size_t)(run->n_seq + 1) * sizeof(int32_t);
        dt_status status = dt_exec_alloc(run->exec, &run->cu_device, bytes, err);
        if (status == DT_OK)
            status = dt_exec_upload(run->exec, run->cu_device, run->cu_seqlens, bytes, err);
        if (status != DT_OK)
            return status;
        seqs.cu_seqlens_device = run->cu_device;
    }
    memcpy(run->args + run->op->seqs_offset, &seqs, sizeof seqs);
    return DT_OK;
}

static dt_status call(dt_run *run, dt_err *err)
{
    dt_op op = run->op->op;
    dt_status status = dt_op_saved_bytes(run->exec, op, run->args, &run->saved.bytes, err);
    if (status == DT_OK)
        status = dt_exec_alloc(run->exec, &run->saved.data, run->saved.bytes, err);
    if (status == DT_OK)
        status = dt_op_forward(run->exec, op, run->args, run->backward ? &run->saved : NULL, err);
    if (status == DT_OK && run->backward)
        status = dt_op_backward(run->exec, op, run->args, &run->saved, err);
    if (status == DT_OK)
        status = dt_exec_synchronize(run->exec, err);
    return status;
}

/* ---- judging ---- */

/* fp32: what rounding of fp32 arithmetic allows. bf16: fla's own error against float64, a slice 2.5 times that. */
static void tolerances(const dt_run *run, const dt_binding *b, dt_comparison_rule *rule)
{
    if (run->options->activation == DT_F32) {
        rule->tolerance = b->role == DT_ROLE_OUTPUT ? 1e-5 : b->loose ? 1e-3 : 1e-4;
        rule->slice_tolerance = rule->tolerance;
        return;
    }
    static const struct {
        const char *name;
        double ratio;
    } gdn[] = {{"o", 4.3e-3},  {"dq", 4.4e-3},    {"dk", 4.7e-3},          {"dv", 4.0e-3},
               {"dg", 4.6e-3}, {"dbeta", 4.0e-3}, {"final_state", 3.3e-3}, {"dinitial_state", 1.7e-3}};
    rule->tolerance = 4.0e-3; /* a few roundings to bf16 */
    for (size_t i = 0; run->op->op == DT_OP_GDN && i < sizeof gdn / sizeof *gdn; i++)
        if (strcmp(gdn[i].name, b->name) == 0)
            rule->tolerance = gdn[i].ratio;
    rule->slice_tolerance = 2.5 * rule->tolerance;
    rule->slice_floor = 0.25;
}

/* Marks the rows x heads whose input vector is all zero. NULL when the binding has no such rule or none is zero. */
static bool *zero_rows(const dt_run *run, const dt_binding *b)
{
    const dt_case_tensor *in = NULL;
    for (int i = 0; b->apart_input && i < run->n; i++)
        if (strcmp(run->tensor[i].binding->name, b->apart_input) == 0)
            in = &run->tensor[i];
    if (!in || in->rank != 3)
        return NULL;
    int64_t vectors = in->shape[0] * in->shape[1], width = in->shape[2];
    bool *apart = dtp_calloc((size_t)vectors, sizeof *apart);
    for (int64_t v = 0; apart && v < vectors; v++) {
        apart[v] = true;
        for (int64_t i = 0; i < width; i++)
            apart[v] &= in->values[v * width + i] == 0;
    }
    return apart;
}

static dt_status judge(dt_run *run, dt_case_report *report, dt_err *err)
{
    report->passed = true;
    for (int i = 0; i < run->n; i++) {
        dt_case_tensor *c = &run->tensor[i];
        dt_err guard = {0};
        dt_status status = dtp_guarded_verify(&c->buffer, run->exec, c->binding->name, &guard);
        if (status == DT_E_INTERNAL) {
            snprintf(report->fault, sizeof report->fault, "%s", guard.text);
            report->passed = false;
        } else if (status != DT_OK) {
            return dt_fail(err, status, "%s", guard.text);
        }
        if (c->binding->role == DT_ROLE_INPUT || c->binding->role == DT_ROLE_UPSTREAM)
            continue;
        float *got = dtp_calloc((size_t)c->count, sizeof *got);
        if (!got)
            return dt_fail(err, DT_E_NOMEM, "%s: cannot hold %s", run->path, c->binding->name);
        status = dtp_guarded_read(&c->buffer, run->exec, got, err);
        dt_comparison_rule rule = {.slicing = c->binding->slicing};
        tolerances(run, c->binding, &rule);
        bool *apart = zero_rows(run, c->binding);
        rule.apart = apart;
        int64_t heads = c->rank >= 2 ? c->shape[1] : 1;
        int64_t vectors = c->shape[0] * heads, width = vectors > 0 ? c->count / vectors : 1;
        if (status == DT_OK) {
            dt_case_result *r = &report->result[report->n_results++];
            *r = (dt_case_result){
                c->binding->name,
                dtp_compare(got, c->values, c->shape[0], heads, width, run->cu_seqlens, run->n_seq, &rule),
                rule.tolerance, rule.slice_tolerance};
            report->passed &= r->comparison.passed;
        }
        free(apart);
        free(got);
        if (status != DT_OK)
            return status;
    }
    return DT_OK;
}

static void clean_up(dt_run *run)
{
    for (int i = 0; i < run->n; i++) {
        dtp_guarded_free(&run->tensor[i].buffer, run->exec);
        free(run->tensor[i].values);
    }
    dt_exec_release(run->exec, run->saved.data);
    dt_exec_release(run->exec, run->cu_device);
    free(run->cu_seqlens);
    dtp_st_close(run->file);
}

static void name_case(dt_case_report *report, const char *path)
{
    const char *base = dtp_path_base(path), *dot = strrchr(base, '.');
    snprintf(report->name, sizeof report->name, "%.*s", dot ? (int)(dot - base) : (int)strlen(base), base);
}

dt_status dtp_run_op_case(dt_exec *exec, const char *path, const dt_case_options *options, dt_case_report *report,
                          dt_err *err)
{
    dt_run run = {.exec = exec, .path = path, .options = options};
    *report = (dt_case_report){0};
    name_case(report, path);
    dt_status status = read_case(&run, &report->op, err);
    for (int i = 0; i < run.n && status == DT_OK; i++)
        status = make_buffer(&run, &run.tensor[i], err);
    if (status == DT_OK)
        status = set_rows(&run, err);
    if (status == DT_OK && options->provider) {
        char *choice = dtp_format("%s=%s", dt_op_name(report->op), options->provider);
        status = choice ? dt_ctx_choose(exec->ctx, choice, err) : dt_fail(err, DT_E_NOMEM, "out of memory");
        free(choice);
    }
    if (status == DT_OK) {
        dt_err fault = {0};
        dt_op_info info;
        if (dt_ctx_op_info(exec->ctx, report->op, exec->device, &info, NULL) == DT_OK)
            report->provider = info.provider;
        if (call(&run, &fault) != DT_OK) /* the provider's failure is the case's result, not an error of the check */
            snprintf(report->fault, sizeof report->fault, "%s", fault.text);
        else
            status = judge(&run, report, err);
    }
    clean_up(&run);
    return status;
}
