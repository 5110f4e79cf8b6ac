#include "model/model.h"
#include "core/file.h"
#include "core/memory.h"
#include "model/pass.h"
#include <stdlib.h>
#include <string.h>

static dt_status load_config(dt_model *m, dt_err *err)
{
    char *path = dtp_path_join(m->folder, "config.json");
    dt_status status =
        path ? dtp_config_load(&m->config, path, err) : dt_fail(err, DT_E_NOMEM, "%s: no memory for a path", m->folder);
    free(path);
    return status;
}

static dt_status check_options(const dt_model_options *o, dt_err *err)
{
    if (o->tune == DT_TUNE_LORA && !o->lora == !o->adapter)
        return dt_fail(err, DT_E_ARG, "LoRA training needs either settings or an adapter to go on from");
    if (o->tune == DT_TUNE_FULL && (o->lora || o->adapter))
        return dt_fail(err, DT_E_ARG, "full tuning takes no adapter: merge it first with `deltune export`");
    if (o->activation != DT_F32 && o->activation != DT_BF16)
        return dt_fail(err, DT_E_DTYPE, "activations are F32 or BF16, not %s", dt_dtype_name(o->activation));
    return DT_OK;
}

/* The lowest layer that holds trainable tensors. */
static int64_t first_trained(const dt_model *m)
{
    if (m->tune == DT_TUNE_FULL)
        return 0;
    for (int64_t i = 0; m->lora && i < m->config->layers; i++)
        for (int k = 0; k < DT_MAX_MODULES; k++)
            if (dtp_lora_targets(m->lora, i, k))
                return i;
    return m->config->layers;
}

static dt_status open_parts(dt_model *m, const dt_model_options *o, dt_err *err)
{
    dt_status status = load_config(m, err);
    if (status == DT_OK)
        status = dtp_checkpoint_open(&m->checkpoint, m->folder, err);
    if (status == DT_OK && o->adapter)
        status = dtp_lora_open(&m->lora, m->config, o->adapter, err);
    else if (status == DT_OK && o->lora)
        status = dtp_lora_create(&m->lora, m->config, o->lora, err);
    const dt_store_options store = {
        .tune = o->tune, .lora = m->lora, .seed = o->seed, .weight_decay = o->weight_decay, .defer = o->defer};
    if (status == DT_OK)
        status = dtp_store_open(&m->store, m->exec, m->config, m->checkpoint, &store, err);
    if (status == DT_OK)
        m->first_trained = first_trained(m);
    return status;
}

dt_status dtp_model_open(dt_model **out, dt_exec *exec, const dt_model_options *options, dt_err *err)
{
    dt_status status = check_options(options, err);
    if (status != DT_OK)
        return status;
    dt_model *m = dtp_calloc(1, sizeof *m);
    if (!m || !(m->folder = dtp_strdup(options->folder))) {
        free(m);
        return dt_fail(err, DT_E_NOMEM, "%s: no memory to open the model", options->folder);
    }
    m->exec = exec;
    m->activation = options->activation;
    m->tune = options->tune;
    status = open_parts(m, options, err);
    if (status != DT_OK) {
        dtp_model_close(m);
        return status;
    }
    *out = m;
    return DT_OK;
}

void dtp_model_close(dt_model *m)
{
    if (!m)
        return;
    dtp_memory_free(m->memory);
    dtp_store_close(m->store);
    dtp_lora_free(m->lora);
    dtp_checkpoint_close(m->checkpoint);
    dtp_config_free(m->config);
    free(m->folder);
    free(m);
}

const dt_model_config *dtp_model_config(const dt_model *model)
{
    return model->config;
}
const dt_lora *dtp_model_lora(const dt_model *model)
{
    return model->lora;
}
const dt_trainable *dtp_model_trainable(const dt_model *model)
{
    return &model->store->trainable;
}
int64_t dtp_model_parameters(const dt_model *model)
{
    return model->store->parameters;
}

void dtp_model_set_tap(dt_model *model, dt_hidden_tap tap, void *user)
{
    model->tap = tap;
    model->tap_user = user;
}

/* ---- memory ---- */

static int64_t round_up_64(int64_t n)
{
    return (n + 63) / 64 * 64;
}

static void report_plan(const dt_model *m, uint64_t activations, dt_plan_report *r)
{
    const dt_trainable *t = &m->store->trainable;
    const uint64_t copies = m->tune == DT_TUNE_NONE ? 1 : 4; /* parameters, gradients, two moments */
    r->weights = m->store->weight_bytes;
    r->trainable = copies * (uint64_t)t->count * sizeof(float);
    r->activations = activations;
    r->total = r->weights + r->trainable + r->activations + r->workspace;
}

/* P-44: the need, the limit, and what to change. */
static dt_status too_large(const dt_plan_report *r, const dt_plan_options *o, uint64_t need, dt_err *err)
{
    const bool hopeless = r->weights + r->trainable >= o->memory_limit;
    const char *remedy = !hopeless ? o->recompute == DT_RECOMPUTE_NONE ? "lower max_length or packing_length, or let "
                                                                         "gradient_checkpointing be true or auto"
                                                                       : "lower max_length or packing_length"
                         : r->trainable > r->weights ? "train adapters instead of all weights, or use more memory"
                                                     : "use a smaller model, or more memory";
    return dt_fail(err, DT_E_NOMEM,
                   "a pack of %lld tokens needs %.2f GiB (weights %.2f, trainable %.2f, activations and workspace "
                   "%.2f), the limit is %.2f GiB: %s",
                   (long long)o->max_tokens, (double)r->total / 0x1p30, (double)r->weights / 0x1p30,
                   (double)r->trainable / 0x1p30, (double)need / 0x1p30, (double)o->memory_limit / 0x1p30, remedy);
}

dt_status dtp_model_plan(dt_model *model, const dt_plan_options *o, dt_plan_report *report_out, dt_err *err)
{
    if (o->max_tokens < 1 || o->max_n_seq < 1 || o->max_tokens > INT32_MAX - 64)
        return dt_fail(err, DT_E_ARG, "a pack of %lld tokens in %lld samples cannot be planned",
                       (long long)o->max_tokens, (long long)o->max_n_seq);
    if (o->train && model->tune == DT_TUNE_NONE)
        return dt_fail(err, DT_E_ARG, "the model was opened for inference and cannot be planned for training");
    dt_plan_report r = {.max_tokens = round_up_64(o->max_tokens)};
    report_plan(model, 0, &r);
    const uint64_t fixed = r.total;
    dt_memory_options memory = {
        .rows = r.max_tokens, .n_seq = o->max_n_seq, .train = o->train, .recompute = o->recompute, .record = o->record};
    if (o->memory_limit)
        memory.limit = o->memory_limit > fixed ? o->memory_limit - fixed : 1;
    dtp_memory_free(model->memory);
    model->memory = NULL;
    uint64_t need = 0;
    dt_status status = dtp_memory_create(&model->memory, model, &memory, &need, err);
    if (model->memory) {
        r.workspace = model->memory->workspace;
        r.layers_recomputed = o->train ? model->memory->recomputed : 0;
    }
    report_plan(model, need - r.workspace, &r);
    *report_out = r;
    if (status == DT_E_NOMEM && need && o->memory_limit)
        return too_large(&r, o, need, err);
    if (status == DT_OK && o->train && !model->store->counting)
        status = dtp_store_add_moments(model->store, err);
    return status;
}

dt_status dtp_model_load(dt_model *model, dt_err *err)
{
    if (!model->store->counting)
        return DT_OK;
    dt_status status = dtp_store_load(model->store, err);
    if (status == DT_OK && model->memory)
        status = dtp_memory_reserve(model->memory, model, err);
    if (status == DT_OK && model->memory && model->memory->train)
        status = dtp_store_add_moments(model->store, err);
    return status;
}
