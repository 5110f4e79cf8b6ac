/* Forward and backward of a planned model over one pack. */
#include "model/arena.h"
#include "model/pass.h"

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
    if (status != DT_OK || m->exec->device == DT_DEVICE_CPU)
        return status;
    /* A captured step reads n_seq + 1 boundaries of the plan: those behind the pack repeat T. */
    for (int64_t n = 0; n <= m->n_seq; n++)
        m->plan_cu_seqlens[n] = k->cu_seqlens[n < k->n_seq ? n : k->n_seq];
    return upload(m, m->cu_seqlens, m->plan_cu_seqlens, m->n_seq + 1, err);
}

/* On the CPU rows follow the pack; a device keeps the shapes of the plan, so that a captured step can be replayed. */
static dt_pass pass_over(dt_model *model, const dt_pack *k)
{
    dt_memory *m = model->memory;
    const bool cpu = m->exec->device == DT_DEVICE_CPU;
    const int64_t rows = cpu ? (k->T + 63) / 64 * 64 : m->rows;
    return (dt_pass){
        .model = model,
        .config = model->config,
        .memory = m,
        .exec = m->exec,
        .T = k->T,
        .rows = rows,
        .seqs = {.cu_seqlens = k->cu_seqlens,
                 .cu_seqlens_device = cpu ? NULL : m->cu_seqlens,
                 .n_seq = k->n_seq,
                 .n_seq_cap = cpu ? k->n_seq : m->n_seq,
                 .T = k->T,
                 .T_cap = rows},
    };
}

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

dt_status dtp_model_evaluate(dt_model *model, const dt_pack *pack, dt_cross_entropy_result *result, float *row_loss,
                             dt_err *err)
{
    dt_status status = check_pack(model, pack, err);
    if (status == DT_OK)
        status = upload_pack(model->memory, pack, err);
    if (status != DT_OK)
        return status;
    dt_pass p = pass_over(model, pack);
    status = dtp_pass_train(&p, pack->weights, 0, result, err);
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
