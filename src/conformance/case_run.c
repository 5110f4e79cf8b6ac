#include "conformance/case_run.h"

#include "conformance/case_extras.h"
#include "conformance/guarded.h"
#include "core/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dt_run {
    dt_exec *exec;
    const dt_case *c;
    const dt_case_setup *setup;
    dt_guarded buffer[DT_CASE_MAX_TENSORS];
    dt_case_extras extras;
    _Alignas(64) unsigned char args[DT_CASE_ARGS];
    dt_saved saved;
    bool backward;
} dt_run;

/* Rows of tokens, as opposed to weights and states: the tensors that capacity rows and strides apply to. */
static bool has_rows(const dt_case_tensor *t)
{
    return t->binding->place == DT_PLACE_ROWS;
}

/* The buffer's shape: capacity rows below, padding behind each row. A padded row is [.., width + row_pad] in memory. */
static void buffer_shape(const dt_run *run, const dt_case_tensor *t, int *rank, int64_t shape[DT_MAX_RANK])
{
    *rank = t->rank;
    memcpy(shape, t->shape, sizeof t->shape);
    if (!has_rows(t))
        return;
    *rank = 2;
    shape[0] = t->shape[0] + run->setup->extra_rows;
    shape[1] = 1;
    for (int i = 1; i < t->rank; i++)
        shape[1] *= t->shape[i];
    shape[1] += t->binding->storage == DT_STORE_ACT && t->rank >= 2 ? run->setup->row_pad : 0;
}

/* The view of the buffer that the operator gets. */
static dt_tensor view_of(const dt_run *run, int i)
{
    const dt_case_tensor *t = &run->c->tensor[i];
    dt_tensor view = run->buffer[i].tensor;
    if (!has_rows(t))
        return view;
    int64_t rows = view.shape[0], pitch = view.stride[0];
    dt_tensor out = {
        .data = view.data, .dtype = view.dtype, .rank = t->rank, .shape = {rows, 1, 1, 1}, .stride = {pitch, 1, 1, 1}};
    int64_t inner = 1;
    for (int d = t->rank - 1; d > 0; d--) {
        out.shape[d] = t->shape[d];
        out.stride[d] = inner;
        inner *= t->shape[d];
    }
    return out;
}

/* The case's values in the buffer's layout: rows apart, capacity rows 1, padding NaN. */
static float *spread(const dt_run *run, int i)
{
    const dt_case_tensor *t = &run->c->tensor[i];
    const dt_tensor *b = &run->buffer[i].tensor;
    int64_t count = dt_tensor_numel(b);
    float *image = dtp_calloc((size_t)count, sizeof *image);
    if (!image)
        return NULL;
    if (!has_rows(t)) {
        memcpy(image, t->values, (size_t)t->count * sizeof *image);
        return image;
    }
    int64_t pitch = b->shape[1], width = t->shape[0] ? t->count / t->shape[0] : 0;
    for (int64_t r = 0; r < b->shape[0]; r++)
        for (int64_t x = 0; x < pitch; x++)
            image[r * pitch + x] = x >= width ? NAN : r >= t->shape[0] ? 1 : t->values[r * width + x];
    return image;
}

/* What the buffer holds before the call: given values; zeros where the call adds; NaN elsewhere, from its creation on.
 */
static dt_status fill_buffer(dt_run *run, int i, dt_err *err)
{
    const dt_binding *b = run->c->tensor[i].binding;
    if (!dtp_binding_has_buffer(b))
        return DT_OK;
    if (!dtp_binding_is_given(b))
        return b->role == DT_ROLE_GRADIENT && b->place == DT_PLACE_PARAM
                   ? dt_exec_zero(run->exec, run->buffer[i].tensor.data, run->buffer[i].bytes, err)
                   : DT_OK;
    float *image = spread(run, i);
    dt_status status = image ? dtp_guarded_write(&run->buffer[i], run->exec, image, err)
                             : dt_fail(err, DT_E_NOMEM, "%s: out of memory", run->c->name);
    free(image);
    return status;
}

static dt_status fill_buffers(dt_run *run, dt_err *err)
{
    dt_status status = DT_OK;
    for (int i = 0; i < run->c->n && status == DT_OK; i++)
        status = fill_buffer(run, i, err);
    return status;
}

static dt_status make_buffer(dt_run *run, int i, dt_err *err)
{
    const dt_case_tensor *t = &run->c->tensor[i];
    run->backward |= t->binding->role == DT_ROLE_UPSTREAM;
    if (!dtp_binding_has_buffer(t->binding))
        return DT_OK;
    int rank;
    int64_t shape[DT_MAX_RANK] = {1, 1, 1, 1};
    buffer_shape(run, t, &rank, shape);
    const dt_dtype dtypes[] = {
        [DT_STORE_ACT] = run->setup->activation, [DT_STORE_F32] = DT_F32, [DT_STORE_I32] = DT_I32};
    dt_status status = dtp_guarded_create(&run->buffer[i], run->exec, dtypes[t->binding->storage], rank, shape, err);
    if (status != DT_OK)
        return status;
    dt_tensor view = view_of(run, i);
    memcpy(run->args + t->binding->offset, &view, sizeof view);
    return DT_OK;
}

/* Forward and backward, queued. */
static dt_status issue(dt_run *run, dt_err *err)
{
    dt_op op = run->c->op->op;
    dt_status status = dt_op_forward(run->exec, op, run->args, run->backward ? &run->saved : NULL, err);
    return status == DT_OK && run->backward ? dt_op_backward(run->exec, op, run->args, &run->saved, err) : status;
}

/* Records the call, replays it with other step values and boundaries, then with the right ones: a value that was taken
 * when the call was recorded shows. */
static dt_status record_and_replay(dt_run *run, dt_err *err)
{
    size_t workspace = 0;
    dt_recording *recording = NULL;
    dt_status status = dt_op_workspace_bytes(run->exec, run->c->op->op, run->args, &workspace, err);
    if (status == DT_OK)
        status = dt_exec_reserve(run->exec, workspace, err);
    if (status == DT_OK)
        status = dtp_case_extras_upload(&run->extras, run->exec, true, err);
    if (status == DT_OK)
        status = dt_exec_record_begin(run->exec, err);
    if (status != DT_OK)
        return status;
    status = issue(run, err);
    dt_status ended = dt_exec_record_end(run->exec, status == DT_OK ? &recording : NULL, status == DT_OK ? err : NULL);
    status = status == DT_OK ? ended : status;
    if (status == DT_OK)
        status = dt_exec_replay(run->exec, recording, err);
    if (status == DT_OK)
        status = dtp_case_extras_upload(&run->extras, run->exec, false, err);
    if (status == DT_OK)
        status = fill_buffers(run, err);
    if (status == DT_OK)
        status = dt_exec_replay(run->exec, recording, err);
    if (status == DT_OK)
        status = dt_exec_synchronize(run->exec, err);
    dt_exec_recording_release(run->exec, recording);
    return status;
}

/* What forward keeps begins as NaN: backward must not read what forward did not write. */
static dt_status make_saved(dt_run *run, dt_err *err)
{
    dt_status status = dt_op_saved_bytes(run->exec, run->c->op->op, run->args, &run->saved.bytes, err);
    if (status == DT_OK)
        status = dt_exec_alloc(run->exec, &run->saved.data, run->saved.bytes, err);
    if (status != DT_OK || run->saved.bytes == 0)
        return status;
    void *image = malloc(run->saved.bytes);
    if (!image)
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", run->c->name);
    memset(image, 0xFF, run->saved.bytes);
    status = dt_exec_upload(run->exec, run->saved.data, image, run->saved.bytes, err);
    if (status == DT_OK)
        status = dt_exec_synchronize(run->exec, err);
    free(image);
    return status;
}

static dt_status call(dt_run *run, dt_err *err)
{
    dt_status status = make_saved(run, err);
    if (status == DT_OK && run->setup->recorded && dt_exec_can_record(run->exec))
        return record_and_replay(run, err);
    if (status == DT_OK)
        status = issue(run, err);
    if (status == DT_OK)
        status = dt_exec_synchronize(run->exec, err);
    return status;
}

/* Where the i-th tensor is: in its own buffer, or in that of the input it updates. */
static int buffer_of(const dt_case *c, int i)
{
    const char *input = c->tensor[i].binding->updates;
    for (int other = 0; input && other < c->n; other++)
        if (strcmp(c->tensor[other].binding->name, input) == 0)
            return other;
    return i;
}

/* Takes a result out of its buffer: values of the T rows; what lies beyond them and between them is looked at. */
static dt_status collect(dt_run *run, int i, dt_case_outcome *out, dt_err *err)
{
    const dt_case_tensor *t = &run->c->tensor[i];
    out->values[i] = dtp_calloc((size_t)t->count, sizeof(float));
    if (!out->values[i])
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", run->c->name);
    if (!dtp_binding_has_buffer(t->binding) && !t->binding->updates)
        return dtp_case_extras_result(&run->extras, run->exec, t->binding, out->values[i], err);
    const dt_guarded *buffer = &run->buffer[buffer_of(run->c, i)];
    const dt_tensor *b = &buffer->tensor;
    int64_t count = dt_tensor_numel(b);
    float *image = dtp_calloc((size_t)count, sizeof *image);
    dt_status status = image ? dtp_guarded_read(buffer, run->exec, image, err)
                             : dt_fail(err, DT_E_NOMEM, "%s: out of memory", run->c->name);
    if (status == DT_OK && !has_rows(t)) {
        memcpy(out->values[i], image, (size_t)t->count * sizeof *image);
    } else if (status == DT_OK) {
        int64_t pitch = b->shape[1], width = t->shape[0] ? t->count / t->shape[0] : 0;
        for (int64_t r = 0; r < b->shape[0]; r++)
            for (int64_t x = 0; x < pitch; x++) {
                float value = image[r * pitch + x];
                if (x >= width && !isnan(value) && !out->fault[0])
                    snprintf(out->fault, sizeof out->fault, "%s was written between its rows (row %lld)",
                             t->binding->name, (long long)r);
                else if (x < width && r >= t->shape[0] && value != 0 && !out->fault[0])
                    snprintf(out->fault, sizeof out->fault,
                             "row %lld of %s, which belongs to no sample, is %g instead of 0", (long long)r,
                             t->binding->name, value);
                else if (x < width && r < t->shape[0])
                    out->values[i][r * width + x] = value;
            }
    }
    free(image);
    return status;
}

static dt_status look_at_guards(dt_run *run, dt_case_outcome *out, dt_err *err)
{
    for (int i = 0; i < run->c->n; i++) {
        dt_err guard = {0};
        if (!dtp_binding_has_buffer(run->c->tensor[i].binding))
            continue;
        dt_status status = dtp_guarded_verify(&run->buffer[i], run->exec, run->c->tensor[i].binding->name, &guard);
        if (status == DT_E_INTERNAL && !out->fault[0])
            snprintf(out->fault, sizeof out->fault, "%s", guard.text);
        else if (status != DT_OK && status != DT_E_INTERNAL)
            return dt_fail(err, status, "%s", guard.text);
    }
    return DT_OK;
}

dt_status dtp_case_choose(dt_exec *exec, dt_op op, const char *provider, dt_err *err)
{
    char *choice = dtp_format("%s=%s", dt_op_name(op), provider ? provider : "auto");
    dt_status status = choice ? dt_ctx_choose(exec->ctx, choice, err) : dt_fail(err, DT_E_NOMEM, "out of memory");
    free(choice);
    return status;
}

dt_status dtp_case_run(dt_exec *exec, const dt_case *c, const dt_case_setup *setup, dt_case_outcome *out, dt_err *err)
{
    dt_run *run = dtp_calloc(1, sizeof *run);
    *out = (dt_case_outcome){0};
    if (!run)
        return dt_fail(err, DT_E_NOMEM, "%s: out of memory", c->name);
    run->exec = exec;
    run->c = c;
    run->setup = setup;
    memcpy(run->args, c->args, sizeof run->args);
    dt_status status = setup->provider ? dtp_case_choose(exec, c->op->op, setup->provider, err) : DT_OK;
    for (int i = 0; i < c->n && status == DT_OK; i++)
        status = make_buffer(run, i, err);
    if (status == DT_OK)
        status = fill_buffers(run, err);
    if (status == DT_OK)
        status = dtp_case_extras_create(&run->extras, exec, c, setup, run->args, err);
    if (status == DT_OK) {
        dt_err fault = {0};
        dt_op_info info;
        if (dt_ctx_op_info(exec->ctx, c->op->op, exec->device, &info, NULL) == DT_OK)
            out->provider = info.provider;
        out->status = call(run, &fault);
        if (out->status != DT_OK)
            snprintf(out->fault, sizeof out->fault, "%s", fault.text);
        status = look_at_guards(run, out, err);
    }
    for (int i = 0; i < c->n && status == DT_OK && !out->fault[0]; i++)
        if (!dtp_binding_is_given(c->tensor[i].binding))
            status = collect(run, i, out, err);
    dt_saved_release(&run->saved);
    for (int i = 0; i < c->n; i++)
        dtp_guarded_free(&run->buffer[i], exec);
    dt_exec_release(exec, run->saved.data);
    dtp_case_extras_free(&run->extras, exec);
    free(run);
    if (status != DT_OK)
        dtp_case_outcome_free(out);
    return status;
}

void dtp_case_outcome_free(dt_case_outcome *out)
{
    for (int i = 0; i < DT_CASE_MAX_TENSORS; i++) {
        free(out->values[i]);
        out->values[i] = NULL;
    }
}
