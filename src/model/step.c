/* Forward and backward of a planned model over one pack. */
#include "core/memory.h"
#include "model/arena.h"
#include "model/pass.h"

#include <stdlib.h>

/* P-05: boundaries are complete and strictly increasing. */
static dt_status check_pack(const dt_model *model, const dt_pack *k, dt_err *err)
{
    const dt_memory *m = model->memory;
    if (!m)
        return dt_fail(err, DT_E_ARG, "the model has no plan: call dtp_model_plan first");
    if (k->T < 1 || k->T > m->rows || k->n_seq < 1 || k->n_seq > m->n_seq)
        return dt_fail(err, DT_E_ARG, "a pack of %lld tokens in %lld samples is outside the plan of %lld and %lld",
                       (long long)k->T, (long long)k->n_seq, (long long)m->rows, (long long)m->n_seq);
    if (k->cu_seqlens[0] != 0 || k->cu_seqlens[k->n_seq] != k->T)
        return dt_fail(err, DT_E_ARG, "sample boundaries run from %d to %d, expected 0 to %lld", k->cu_seqlens[0],
                       k->cu_seqlens[k->n_seq], (long long)k->T);
    for (int64_t n = 0; n < k->n_seq; n++)
        if (k->cu_seqlens[n] >= k->cu_seqlens[n + 1])
            return dt_fail(err, DT_E_ARG, "sample %lld of the pack is empty or negative: boundaries %d and %d",
                           (long long)n, k->cu_seqlens[n], k->cu_seqlens[n + 1]);
    return DT_OK;
}

/* ---- the CPU: rows follow the pack ---- */

static dt_status upload(const dt_memory *m, void *to, const void *from, int64_t n, dt_err *err)
{
    return dt_exec_upload(m->exec, to, from, (size_t)n * 4, err);
}

static dt_status upload_pack(const dt_memory *m, const dt_pack *k, dt_err *err)
{
    dt_status status = upload(m, m->tokens, k->tokens, k->T, err);
    if (status == DT_OK)
        status = upload(m, m->positions, k->positions, k->T, err);
    if (status == DT_OK)
        status = upload(m, m->targets, k->targets, k->T, err);
    if (status == DT_OK && k->weights)
        status = upload(m, m->weights, k->weights, k->T, err);
    return status;
}

static dt_pass pass_over(dt_model *model, const dt_pack *k)
{
    dt_memory *m = model->memory;
    const int64_t rows = (k->T + 63) / 64 * 64;
    return (dt_pass){
        .model = model,
        .config = model->config,
        .memory = m,
        .exec = m->exec,
        .T = k->T,
        .rows = rows,
        .pack_T = k->T,
        .seqs = {.cu_seqlens = k->cu_seqlens, .n_seq = k->n_seq, .n_seq_cap = k->n_seq, .T = k->T, .T_cap = rows},
    };
}

/* ---- a device: rows of a capacity, and everything about the pack in device memory, so that calls can be replayed ----
 */

static dt_pass pass_of_capacity(dt_model *model, int64_t rows)
{
    dt_memory *m = model->memory;
    dtp_stand_in(m, rows);
    return (dt_pass){
        .model = model,
        .config = model->config,
        .memory = m,
        .exec = m->exec,
        .T = rows,
        .rows = rows,
        .pack_T = rows,
        .seqs = {.cu_seqlens = m->stand_in,
                 .cu_seqlens_device = m->cu_seqlens,
                 .n_seq = m->n_seq,
                 .n_seq_cap = m->n_seq,
                 .T = rows,
                 .T_cap = rows},
    };
}

typedef struct {
    dt_model *model;
    int64_t rows, pack_T;
    bool clear;
} backward_work;

static dt_status queue_backward(void *user, dt_err *err)
{
    const backward_work *w = user;
    dt_pass p = pass_of_capacity(w->model, w->rows);
    p.keep = true;
    p.pack_T = w->pack_T; /* read by a tap alone, and then nothing is recorded */
    p.values = p.memory->values;
    if (w->model->lora)
        p.dropout = (float)dtp_lora_settings(w->model->lora).dropout;
    dt_status status = w->clear ? dtp_model_zero_grad(w->model, err) : DT_OK;
    return status == DT_OK ? dtp_pass_train(&p, p.memory->weights, 0, NULL, err) : status;
}

dt_status dtp_model_queue_backward(dt_model *model, const dt_pack *pack, const dt_step_values *values, bool clear,
                                   dt_err *err)
{
    dt_memory *m = model->memory;
    dt_status status = check_pack(model, pack, err);
    if (status == DT_OK && !m->train)
        status = dt_fail(err, DT_E_ARG, "the model is planned for evaluation only");
    if (status == DT_OK && m->exec->device == DT_DEVICE_CPU)
        status = dt_fail(err, DT_E_UNSUPPORTED, "the CPU has no queue of calls");
    if (status == DT_OK)
        status = dtp_send_inputs(m, pack, values, err);
    if (status != DT_OK)
        return status;
    const int capacity = dtp_capacity_of(m, pack->T);
    backward_work work = {model, dtp_capacity_rows(m, capacity), pack->T, clear};
    const bool record = m->record && !model->tap; /* a tap waits for numbers that a recording does not have */
    return dtp_recorded_run(&m->step[capacity][clear], m->exec, record, queue_backward, &work, err);
}

/* The first run loads what the device loads lazily, the second records. */
dt_status dtp_model_rehearse(dt_model *model, bool accumulates, dt_err *err)
{
    const dt_memory *m = model->memory;
    int32_t *ids = dtp_calloc((size_t)m->rows * 2, sizeof *ids), *none = ids ? ids + m->rows : NULL;
    if (!ids)
        return dt_fail(err, DT_E_NOMEM, "no memory for a first pass of %lld tokens", (long long)m->rows);
    for (int64_t t = 0; t < m->rows; t++)
        none[t] = -1;
    dtp_stand_in(model->memory, m->rows);
    const dt_step_values values = {.update = 1};
    const dt_pack pack = {
        .T = m->rows, .n_seq = m->n_seq, .tokens = ids, .positions = ids, .targets = none, .cu_seqlens = m->stand_in};
    dt_status status = DT_OK;
    for (int clear = 1; clear >= !accumulates && status == DT_OK; clear--)
        for (int i = 0; i < 2 && status == DT_OK; i++)
            status = dtp_model_queue_backward(model, &pack, &values, clear, err);
    if (status == DT_OK)
        status = dt_exec_synchronize(model->exec, err);
    free(ids);
    return status;
}

static dt_status backward_on_device(dt_model *model, const dt_pack *pack, float grad_scale, dt_step_key key,
                                    dt_cross_entropy_result *result, dt_err *err)
{
    const dt_step_values values = {.seed = key.seed, .step = key.step, .micro = key.micro, .grad_scale = grad_scale};
    dt_status status = dtp_model_queue_backward(model, pack, &values, false, err);
    return status == DT_OK ? dt_exec_download(model->exec, result, &model->memory->results->loss, sizeof *result, err)
                           : status;
}

static dt_status evaluate_on_device(dt_model *model, const dt_pack *pack, dt_cross_entropy_result *result, dt_err *err)
{
    dt_memory *m = model->memory;
    static const dt_step_values none;
    dt_status status = dtp_send_inputs(m, pack, &none, err);
    if (status != DT_OK)
        return status;
    dt_pass p = pass_of_capacity(model, dtp_capacity_rows(m, dtp_capacity_of(m, pack->T)));
    p.pack_T = pack->T;
    status = dtp_pass_train(&p, m->weights, 0, NULL, err);
    return status == DT_OK ? dt_exec_download(m->exec, result, &m->results->loss, sizeof *result, err) : status;
}

dt_step_results *dtp_model_results(dt_model *model)
{
    return model->memory ? model->memory->results : NULL;
}
const dt_step_values *dtp_model_values(const dt_model *model)
{
    return model->memory ? model->memory->values : NULL;
}

/* ---- a pass ---- */

dt_status dtp_model_zero_grad(dt_model *model, dt_err *err)
{
    const dt_trainable *t = &model->store->trainable;
    return t->grad ? dt_exec_zero(model->exec, t->grad, (size_t)t->count * sizeof(float), err) : DT_OK;
}

dt_status dtp_model_backward(dt_model *model, const dt_pack *pack, float grad_scale, dt_step_key key,
                             dt_cross_entropy_result *result, dt_err *err)
{
    dt_status status = check_pack(model, pack, err);
    if (status == DT_OK && !model->memory->train)
        status = dt_fail(err, DT_E_ARG, "the model is planned for evaluation only");
    if (status == DT_OK && model->exec->device != DT_DEVICE_CPU)
        return backward_on_device(model, pack, grad_scale, key, result, err);
    if (status == DT_OK)
        status = upload_pack(model->memory, pack, err);
    if (status != DT_OK)
        return status;
    dt_pass p = pass_over(model, pack);
    p.keep = true;
    p.key = key;
    if (model->lora)
        p.dropout = (float)dtp_lora_settings(model->lora).dropout;
    return dtp_pass_train(&p, pack->weights, grad_scale, result, err);
}

static dt_status evaluate_on_cpu(dt_model *model, const dt_pack *pack, dt_cross_entropy_result *result, dt_err *err)
{
    dt_status status = upload_pack(model->memory, pack, err);
    if (status != DT_OK)
        return status;
    dt_pass p = pass_over(model, pack);
    return dtp_pass_train(&p, pack->weights, 0, result, err);
}

dt_status dtp_model_evaluate(dt_model *model, const dt_pack *pack, dt_cross_entropy_result *result, float *row_loss,
                             dt_err *err)
{
    dt_status status = check_pack(model, pack, err);
    if (status == DT_OK)
        status = model->exec->device == DT_DEVICE_CPU ? evaluate_on_cpu(model, pack, result, err)
                                                      : evaluate_on_device(model, pack, result, err);
    if (status == DT_OK && row_loss)
        status = dt_exec_download(model->exec, row_loss, model->memory->row_loss, (size_t)pack->T * sizeof(float), err);
    return status;
}

static dt_linear_args logits_args(const dt_model *model, dt_tensor hidden, dt_tensor logits)
{
    return (dt_linear_args){
        DT_LINEAR_ARGS,
        .x = hidden,
        .T = hidden.shape[0],
        .n_parts = 1,
        .part = {{.weight = model->store->head.value, .y = logits}},
    };
}

dt_status dtp_model_logits(dt_model *model, dt_tensor hidden, dt_tensor logits, dt_err *err)
{
    const dt_linear_args a = logits_args(model, hidden, logits);
    return dt_op_forward(model->exec, DT_OP_LINEAR, &a, NULL, err);
}

dt_status dtp_model_logits_bytes(dt_model *model, int64_t rows, size_t *out, dt_err *err)
{
    const dt_model_config *c = model->config;
    const dt_linear_args a = logits_args(model, dt_tensor_2d(DT_ARENA_COUNTING, model->activation, rows, c->hidden),
                                         dt_tensor_2d(DT_ARENA_COUNTING, model->activation, rows, c->vocab));
    return dt_op_workspace_bytes(model->exec, DT_OP_LINEAR, &a, out, err);
}
