#include "conformance/case_extras.h"

#include "core/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static dt_status no_memory(const dt_case_extras *e, dt_err *err)
{
    return dt_fail(err, DT_E_NOMEM, "%s: out of memory", e->c->name);
}

static void set_pointer(unsigned char *args, size_t field, const void *pointer)
{
    memcpy(args + field, &pointer, sizeof pointer);
}

/* Device memory with the contents of `host`. */
static dt_status upload(void **out, dt_exec *exec, const void *host, size_t bytes, dt_err *err)
{
    dt_status status = *out ? DT_OK : dt_exec_alloc(exec, out, bytes, err);
    if (status == DT_OK)
        status = dt_exec_upload(exec, *out, host, bytes, err);
    return status == DT_OK ? dt_exec_synchronize(exec, err) : status;
}

/* ---- boundaries ---- */

/* In a recorded call the host's list is another one: all rows belong to the last sample. */
static dt_status add_boundaries(dt_case_extras *e, dt_exec *exec, const dt_case_setup *setup, unsigned char *args,
                                dt_err *err)
{
    const dt_case *c = e->c;
    e->n_boundaries = c->n_seq + setup->extra_seqs + 1;
    e->boundaries = dtp_calloc((size_t)e->n_boundaries, sizeof *e->boundaries);
    e->wrong = dtp_calloc((size_t)e->n_boundaries, sizeof *e->wrong);
    if (!e->boundaries || !e->wrong)
        return no_memory(e, err);
    for (int64_t i = 0; i < e->n_boundaries; i++) {
        e->boundaries[i] = c->cu_seqlens[i < c->n_seq ? i : c->n_seq];
        e->wrong[i] = i < c->n_seq ? 0 : c->cu_seqlens[c->n_seq];
    }
    /* the case's own list where it will do: at one address in every call, a provider that remembers it is found out */
    const int32_t *list = setup->extra_seqs ? e->boundaries : c->cu_seqlens;
    dt_seqs seqs = {.cu_seqlens = setup->recorded && dt_exec_can_record(exec) ? e->wrong : list,
                    .n_seq = c->n_seq,
                    .n_seq_cap = c->n_seq + setup->extra_seqs,
                    .T = c->rows,
                    .T_cap = c->rows + setup->extra_rows};
    dt_status status = DT_OK;
    if (exec->device != DT_DEVICE_CPU)
        status = upload(&e->boundaries_device, exec, e->boundaries, (size_t)e->n_boundaries * sizeof(int32_t), err);
    seqs.cu_seqlens_device = e->boundaries_device;
    memcpy(args + c->op->seqs_offset, &seqs, sizeof seqs);
    return status;
}

/* ---- segments ---- */

static dt_status add_segments(dt_case_extras *e, dt_exec *exec, const dt_case_setup *setup, unsigned char *args,
                              dt_err *err)
{
    const dt_case_tensor *count = dtp_case_find(e->c, "segment_count"), *decay = dtp_case_find(e->c, "weight_decay");
    if (!count || (decay && decay->count != count->count))
        return dt_fail(err, DT_E_FORMAT, "%s: segment_count and weight_decay are missing or of different lengths",
                       e->c->name);
    e->segments = dtp_calloc((size_t)count->count, sizeof *e->segments);
    if (!e->segments)
        return no_memory(e, err);
    for (int64_t i = 0, at = 0; i < count->count; at += (int64_t)count->values[i++])
        e->segments[i] = (dt_param_segment){at, (int64_t)count->values[i], decay ? decay->values[i] : 0};
    set_pointer(args, e->c->op->segments, e->segments);
    memcpy(args + e->c->op->n_segments, &count->count, sizeof count->count);
    if (!setup->recorded)
        return DT_OK;
    dt_status status = upload(&e->segments_device, exec, e->segments, (size_t)count->count * sizeof *e->segments, err);
    set_pointer(args, e->c->op->segments_device, e->segments_device);
    return status;
}

/* ---- results and values ---- */

static dt_status add_result(dt_case_extras *e, dt_exec *exec, const dt_case_setup *setup, unsigned char *args,
                            dt_err *err)
{
    size_t bytes = e->c->op->result_bytes;
    e->result = dtp_calloc(1, bytes);
    if (!e->result)
        return no_memory(e, err);
    memset(e->result, 0xFF, bytes); /* NaN, -1 */
    if (!setup->recorded) {
        set_pointer(args, e->c->op->result, e->result);
        return DT_OK;
    }
    dt_status status = upload(&e->result_device, exec, e->result, bytes, err);
    set_pointer(args, e->c->op->result_device, e->result_device);
    return status;
}

static dt_status add_values(dt_case_extras *e, dt_exec *exec, unsigned char *args, dt_err *err)
{
    e->c->op->record(args, e->c, &e->recorded);
    dt_status status = upload(&e->recorded_device, exec, &e->recorded, sizeof e->recorded, err);
    if (status != DT_OK)
        return status;
    set_pointer(args, e->c->op->values, (char *)e->recorded_device + offsetof(dt_recorded, values));
    if (e->c->op->norm)
        set_pointer(args, e->c->op->norm, (char *)e->recorded_device + offsetof(dt_recorded, norm));
    return DT_OK;
}

dt_status dtp_case_extras_create(dt_case_extras *out, dt_exec *exec, const dt_case *c, const dt_case_setup *setup,
                                 unsigned char *args, dt_err *err)
{
    out->c = c;
    dt_status status = DT_OK;
    if (c->op->T_offset)
        memcpy(args + c->op->T_offset, &c->rows, sizeof c->rows);
    if (c->op->seqs_offset)
        status = add_boundaries(out, exec, setup, args, err);
    if (status == DT_OK && c->op->segments)
        status = add_segments(out, exec, setup, args, err);
    if (status == DT_OK && c->op->result)
        status = add_result(out, exec, setup, args, err);
    if (status == DT_OK && c->op->values && setup->recorded)
        status = add_values(out, exec, args, err);
    return status;
}

dt_status dtp_case_extras_upload(dt_case_extras *e, dt_exec *exec, bool wrong, dt_err *err)
{
    dt_status status = DT_OK;
    if (e->boundaries_device)
        status = upload(&e->boundaries_device, exec, wrong ? e->wrong : e->boundaries,
                        (size_t)e->n_boundaries * sizeof(int32_t), err);
    if (status != DT_OK || !e->recorded_device)
        return status;
    dt_recorded now = e->recorded;
    if (wrong) {
        now.values.seed += 9;
        now.values.grad_scale = now.values.lr = 7;
        now.values.max_grad_norm = 0.5f;
        now.values.update += 3;
    }
    return upload(&e->recorded_device, exec, &now, sizeof now, err);
}

dt_status dtp_case_extras_result(dt_case_extras *e, dt_exec *exec, const dt_binding *b, float *value_out, dt_err *err)
{
    if (e->result_device) {
        dt_status status = dt_exec_download(exec, e->result, e->result_device, e->c->op->result_bytes, err);
        if (status == DT_OK)
            status = dt_exec_synchronize(exec, err);
        if (status != DT_OK)
            return status;
    }
    const char *at = (const char *)e->result + b->offset;
    double real;
    int64_t whole;
    memcpy(&real, at, sizeof real);
    memcpy(&whole, at, sizeof whole);
    *value_out = b->storage == DT_STORE_RESULT_F64 ? (float)real : (float)whole;
    return DT_OK;
}

void dtp_case_extras_free(dt_case_extras *e, dt_exec *exec)
{
    dt_exec_release(exec, e->boundaries_device);
    dt_exec_release(exec, e->segments_device);
    dt_exec_release(exec, e->result_device);
    dt_exec_release(exec, e->recorded_device);
    free(e->boundaries);
    free(e->wrong);
    free(e->segments);
    free(e->result);
    *e = (dt_case_extras){0};
}
